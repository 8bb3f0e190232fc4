// Text to token ids and back, exactly as the model's own tokenizer does it.
//
// Built once when a model is loaded, from tokenizer.json or from GGUF metadata, and constant from
// then on: every method may be called from any thread at the same time. The pipeline is
//   added tokens split -> normalizer -> pre-tokenizer -> byte-level BPE -> BOS and EOS,
// one file each in this folder; what a model asks for and we do not have is refused by name when
// the tokenizer is built. Supported is byte-level BPE (GPT-2, SmolLM, Llama 3, Qwen, DeepSeek,
// o200k); SentencePiece styles are not.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "coordinator/text/gguf_vocab.h"
#include "coordinator/text/text_span.h"

namespace bitshard {

struct TokenizerParts;  // tokenizer_parts.h: the pipeline's stages

struct EncodeOptions {
  // Add what the model wants around every text (BOS, for some EOS). False after a chat template
  // that wrote BOS itself.
  bool add_special = true;
  // Recognise control tokens ("<|im_end|>") written in the text. False for text of users: there
  // they are mere letters. User-defined tokens that are not special ("<think>" in some models) are
  // recognised either way.
  bool parse_special = false;
  // Parts of the text (ascending, apart) that are text of users although parse_special: a control
  // token that touches one is mere letters. All else is as if they were not given.
  absl::Span<const TextSpan> plain = {};
};

class Tokenizer {
 public:
  // Bytes of tokenizer.json and of tokenizer_config.json (may be empty). DATA_LOSS for broken
  // files, UNIMPLEMENTED with the component's name for a pipeline that we do not have.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromTokenizerJson(
      std::string_view tokenizer_json_bytes, std::string_view tokenizer_config_json);

  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGgufVocab(const GgufVocab& vocab);

  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // INVALID_ARGUMENT when `text` is not valid UTF-8.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, EncodeOptions options) const;

  // Always valid UTF-8: bytes that form no character become U+FFFD, one for each maximal invalid
  // part. Ids that the tokenizer does not know (a model's padded vocabulary may sample them) give
  // no text.
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special) const;

  // The bytes that `id` stands for; may be a part of a character. Empty for unknown ids. Lives as
  // long as the tokenizer.
  std::string_view TokenBytes(int32_t id) const;

  bool IsSpecial(int32_t id) const;
  // One more than the largest id.
  int32_t vocab_size() const;
  std::optional<int32_t> bos_id() const;
  // Ids that end a generation, ascending; may be empty.
  const std::vector<int32_t>& eos_ids() const;
  // The id of the token that is written `token` in the model's files (byte-level form for ordinary
  // tokens).
  std::optional<int32_t> TokenToId(std::string_view token) const;
  // The token's text as in the model's files; empty for unknown ids.
  std::string_view IdToToken(int32_t id) const;

 private:
  const std::unique_ptr<const TokenizerParts> parts_;
};

}  // namespace bitshard
