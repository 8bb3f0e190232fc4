// The stages of one tokenizer, as tokenizer_json.cc and tokenizer_gguf.cc build them and
// tokenizer.cc runs them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/text/added_tokens.h"
#include "coordinator/text/byte_bpe.h"
#include "coordinator/text/normalizer.h"
#include "coordinator/text/pre_tokenizer.h"
#include "coordinator/text/vocabulary.h"

namespace bitshard {

struct TokenizerParts {
  TokenizerParts(Vocabulary table, AddedTokenSplitter before_normalizer,
                 AddedTokenSplitter after_normalizer)
      : vocabulary(std::move(table)),
        raw_added(std::move(before_normalizer)),
        normalized_added(std::move(after_normalizer)) {}
  TokenizerParts(const TokenizerParts&) = delete;  // `bpe` points to `vocabulary`

  Vocabulary vocabulary;
  AddedTokenSplitter raw_added;
  AddedTokenSplitter normalized_added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  bool add_prefix_space = false;  // in front of every stretch between added tokens that has none
  ByteBpe bpe;
  std::vector<int32_t> prefix;  // around every text when special tokens are added
  std::vector<int32_t> suffix;
  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;  // ascending, unique
};

// Names that end a generation wherever they are control tokens, whatever the metadata says: models
// are often converted with the wrong eos, and then never stop.
inline constexpr std::string_view kKnownStopTokens[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "</s>"};

// `declared` and the known names that are special, ascending and unique.
std::vector<int32_t> StopIds(const Vocabulary& vocabulary, std::vector<int32_t> declared);

}  // namespace bitshard
