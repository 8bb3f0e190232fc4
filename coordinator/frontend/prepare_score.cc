// A ScoreRequest into the engine's words, with the same order of checks as a GenerateRequest.
#include <utility>

#include "absl/strings/str_cat.h"

#include "coordinator/engine/error_reason.h"
#include "coordinator/frontend/prepare_request.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr uint32_t kMaxTopLogprobs = 20;

absl::Status CheckFields(const v1::ScoreRequest& request, const ServedModel& model) {
  FieldErrors errors;
  CheckRequestId(request.has_request_id(), request.request_id(), errors);
  switch (request.input_case()) {
    case v1::ScoreRequest::kText:
      CheckText(request.text(), model, errors);
      break;
    case v1::ScoreRequest::kTokens:
      if (request.tokens().ids().empty()) errors.Add("tokens.ids", "must not be empty");
      CheckTokenIds(request.tokens().ids(), "tokens.ids", model.vocabulary_size, errors);
      break;
    case v1::ScoreRequest::INPUT_NOT_SET:
      errors.Add("input", "set one of text, tokens");
      break;
  }
  if (request.top_logprobs() > kMaxTopLogprobs) {
    errors.Add("top_logprobs",
               absl::StrCat("at most ", kMaxTopLogprobs, ", not ", request.top_logprobs()));
  }
  return errors.ToStatus();
}

}  // namespace

absl::StatusOr<PreparedRequest> PrepareScore(const v1::ScoreRequest& request,
                                             const ServedModel& model) {
  RETURN_IF_ERROR(CheckFields(request, model));
  RETURN_IF_ERROR(CheckModelName(model, request.model()));

  PreparedRequest prepared;
  GenerateRequest& out = prepared.engine;
  const std::string field = request.has_tokens() ? "tokens.ids" : "text";
  if (request.has_tokens()) {
    out.prompt_tokens.assign(request.tokens().ids().begin(), request.tokens().ids().end());
  } else {
    ASSIGN_OR_RETURN(out.prompt_tokens, model.tokenizer->Encode(request.text(), EncodeOptions()));
  }
  RETURN_IF_ERROR(CheckPromptTokens(out.prompt_tokens, field, model));
  const size_t tokens = out.prompt_tokens.size();
  if (tokens > model.context_tokens) {
    return PromptTooLongError(field, absl::StrCat("has ", tokens, " tokens, the context holds ",
                                                  model.context_tokens, "; score it in pieces"));
  }
  if (request.first_token() >= tokens) {
    return BadFieldError("first_token", absl::StrCat("must be below the number of tokens, ", tokens,
                                                     ", not ", request.first_token()));
  }
  out.request_id = request.has_request_id() ? request.request_id() : DrawRequestId();
  out.score_from = request.first_token();
  out.logprobs = true;
  out.top_logprobs = request.top_logprobs();
  prepared.started.set_request_id(out.request_id);
  prepared.started.set_prompt_tokens(static_cast<uint32_t>(tokens));
  return prepared;
}

}  // namespace bitshard
