// Token masks, as plan.proto defines them: which tokens of the vocabulary may be drawn.
//
// Bit i % 8 of byte i / 8 is token i; 4 * ceil(vocab_size / 32) bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace bitshard {

inline size_t TokenMaskBytes(uint32_t vocab_size) { return (size_t{vocab_size} + 31) / 32 * 4; }

// All tokens, or none.
inline std::string MakeTokenMask(uint32_t vocab_size, bool allowed) {
  return std::string(TokenMaskBytes(vocab_size), allowed ? '\xff' : '\0');
}

// REQUIRES of all below: token < the vocab_size that the mask was made for.
inline bool MaskAllows(absl::string_view mask, uint32_t token) {
  return (static_cast<uint8_t>(mask[token / 8]) >> (token % 8) & 1) != 0;
}
inline void AllowToken(uint32_t token, std::string* mask) {
  (*mask)[token / 8] = static_cast<char>((*mask)[token / 8] | (1 << (token % 8)));
}
inline void ForbidToken(uint32_t token, std::string* mask) {
  (*mask)[token / 8] = static_cast<char>((*mask)[token / 8] & ~(1 << (token % 8)));
}

}  // namespace bitshard
