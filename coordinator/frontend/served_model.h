// The model that this service answers for, as the frontend needs it. Made in main, constant from
// then on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "coordinator/text/chat_template.h"
#include "coordinator/text/output_parser.h"
#include "coordinator/text/tokenizer.h"

namespace bitshard {

struct ServedModel {
  std::vector<std::string> names;  // at least one; the first is the one that answers carry
  std::string fingerprint;         // of weights, configuration and numerics
  std::string family;
  uint32_t context_tokens = 0;
  uint32_t vocabulary_size = 0;
  uint32_t embedding_size = 0;  // of a hidden state
  std::vector<std::string> weight_formats;
  std::string kv_cache_type;
  std::string activations;
  // Tokens that end an answer, beyond those that the tokenizer itself knows.
  std::vector<int32_t> end_tokens;
  const Tokenizer* tokenizer = nullptr;         // outlives the frontend
  const ChatTemplate* chat_template = nullptr;  // may be null: then chat_refusal says why
  absl::Status chat_refusal;
  const OutputFormat* output_format = nullptr;  // of chat_template; may be null
};

// OK when `name` is empty or one of the model's names, else NOT_FOUND.
absl::Status CheckModelName(const ServedModel& model, const std::string& name);

}  // namespace bitshard
