// A public request into the engine's words: every field checked, the prompt tokenized.
//
// Checks come in this order: whether an answer to resume is this model's (FAILED_PRECONDITION; if
// not, ids of its tokens would be called wrong), fields (INVALID_ARGUMENT, all wrong ones at once),
// model (NOT_FOUND), what is not built (UNIMPLEMENTED), the prompt and its length, the tokens of an
// answer to resume (INVALID_ARGUMENT).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "coordinator/engine/engine.h"
#include "coordinator/frontend/field_errors.h"
#include "coordinator/frontend/served_model.h"
#include "coordinator/grammar/constraint.h"
#include "coordinator/text/output_parser.h"
#include "proto/inference.pb.h"

namespace bitshard {

struct PreparedRequest {
  GenerateRequest engine;
  std::optional<Constraint> constraint;  // not looked at yet; its grammar goes into `engine`
  bool send_text = true;
  bool send_token_ids = false;
  // Makes what takes a choice's text apart; null when all of it is text.
  std::function<std::unique_ptr<OutputParser>()> new_parser;
  v1::Started started;            // goes into the first message
  std::string resumed_text = {};  // that the caller was shown for engine.resumed
  // Of several inputs those after the first, which is the engine's prompt.
  std::vector<std::vector<int32_t>> more_inputs = {};
};

// `pool_tokens`: the longest prompt + output that the KV pool can hold, 0 = not known; it only
// bounds the default of max_tokens. Times, caller and sink are the caller's business.
absl::StatusOr<PreparedRequest> PrepareRequest(const v1::GenerateRequest& request,
                                               const ServedModel& model, uint64_t pool_tokens);

// The same for tokens to score. A text is tokenized as a prompt is.
absl::StatusOr<PreparedRequest> PrepareScore(const v1::ScoreRequest& request,
                                             const ServedModel& model);

// The same for inputs to embed, each of them a text, tokenized as a prompt is, or tokens.
absl::StatusOr<PreparedRequest> PrepareEmbed(const v1::EmbedRequest& request,
                                             const ServedModel& model);

// What they have in common. `given`: the field is set.
void CheckRequestId(bool given, const std::string& id, FieldErrors& errors);
void CheckTokenIds(const google::protobuf::RepeatedField<uint32_t>& ids, absl::string_view field,
                   uint32_t vocabulary_size, FieldErrors& errors);
void CheckText(const std::string& text, const ServedModel& model, FieldErrors& errors,
               const std::string& field = "text");
// INVALID_ARGUMENT when there are none, or some that the model does not know.
absl::Status CheckPromptTokens(const std::vector<int32_t>& tokens, const std::string& field,
                               const ServedModel& model);
std::string DrawRequestId();

// Bytes of text beyond which it cannot fit the context, whatever its tokens: refused without
// tokenizing.
uint64_t MaxTextBytes(const ServedModel& model);

}  // namespace bitshard
