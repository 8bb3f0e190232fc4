// What a GGUF file says about its tokenizer: the `tokenizer.ggml.*` metadata, copied out field by
// field.
//
// coordinator/checkpoint fills it from the file, Tokenizer::FromGgufVocab judges it: nothing here
// is validated, so a missing key is an empty vector or nullopt, and lengths may disagree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace bitshard {

struct GgufVocab {
  std::string model;  // tokenizer.ggml.model: "gpt2", "llama", ...
  std::string pre;    // tokenizer.ggml.pre: "smollm", "llama-bpe", ...; empty when missing
  std::vector<std::string> tokens;   // index = id; byte-level text for model "gpt2"
  std::vector<int32_t> token_types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6
                                     // byte; may be empty
  std::vector<std::string> merges;   // "left right", index = rank
  std::vector<float> scores;         // SentencePiece only
  std::optional<int64_t> bos_id;
  std::optional<int64_t> eos_id;
  std::optional<int64_t> eot_id;
  std::optional<int64_t> eom_id;
  std::optional<int64_t> unk_id;
  std::optional<int64_t> pad_id;
  std::optional<bool> add_bos;
  std::optional<bool> add_eos;
  std::optional<bool> add_space_prefix;
};

}  // namespace bitshard
