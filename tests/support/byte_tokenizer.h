// A tokenizer without merges: id = byte for 0..255, then one end token. Small enough to know by
// heart, and it cuts every stop string and every character outside ASCII across tokens.
#pragma once

#include <cstdint>
#include <memory>

#include "coordinator/text/tokenizer.h"

namespace bitshard {

inline constexpr int32_t kByteTokenizerEos = 256;
inline constexpr uint32_t kByteTokenizerVocab = 257;

std::unique_ptr<Tokenizer> MakeByteTokenizer();

}  // namespace bitshard
