// An EmbedRequest into the engine's words, with the same order of checks as a GenerateRequest.
#include <utility>

#include "absl/strings/str_cat.h"

#include "coordinator/engine/error_reason.h"
#include "coordinator/frontend/prepare_request.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

// Half of the queue that a service has by default: one call must not keep all others out.
constexpr int kMaxInputs = 512;

void CheckCount(int inputs, absl::string_view field, FieldErrors& errors) {
  if (inputs <= kMaxInputs) return;
  errors.Add(std::string(field),
             absl::StrCat("at most ", kMaxInputs, ", not ", inputs, "; make several calls"));
}

absl::Status CheckFields(const v1::EmbedRequest& request, const ServedModel& model) {
  FieldErrors errors;
  CheckRequestId(request.has_request_id(), request.request_id(), errors);
  if (request.texts().empty() && request.tokens().empty())
    errors.Add("texts", "give one or more, or tokens");
  if (!request.texts().empty() && !request.tokens().empty())
    errors.Add("tokens", "give texts or tokens, not both");
  CheckCount(request.texts_size(), "texts", errors);
  CheckCount(request.tokens_size(), "tokens", errors);
  for (int i = 0; i < request.texts_size(); ++i)
    CheckText(request.texts(i), model, errors, absl::StrCat("texts[", i, "]"));
  for (int i = 0; i < request.tokens_size(); ++i) {
    const std::string field = absl::StrCat("tokens[", i, "].ids");
    if (request.tokens(i).ids().empty()) errors.Add(field, "must not be empty");
    CheckTokenIds(request.tokens(i).ids(), field, model.vocabulary_size, errors);
  }
  if (!v1::Pooling_IsValid(request.pooling())) errors.Add("pooling", "unknown value");
  if (request.has_dimensions() &&
      (request.dimensions() == 0 || request.dimensions() > model.embedding_size)) {
    errors.Add("dimensions", absl::StrCat("must be in [1, ", model.embedding_size, "], not ",
                                          request.dimensions()));
  }
  if (!v1::ServiceClass_IsValid(request.service_class()))
    errors.Add("service_class", "unknown value");
  return errors.ToStatus();
}

absl::StatusOr<std::vector<std::vector<int32_t>>> InputsOf(const v1::EmbedRequest& request,
                                                           const ServedModel& model) {
  const bool texts = !request.texts().empty();
  const int count = texts ? request.texts_size() : request.tokens_size();
  std::vector<std::vector<int32_t>> inputs(static_cast<size_t>(count));
  FieldErrors errors;
  for (int i = 0; i < count; ++i) {
    std::vector<int32_t>& input = inputs[static_cast<size_t>(i)];
    const std::string field =
        texts ? absl::StrCat("texts[", i, "]") : absl::StrCat("tokens[", i, "].ids");
    if (texts) {
      ASSIGN_OR_RETURN(input, model.tokenizer->Encode(request.texts(i), EncodeOptions()));
    } else {
      input.assign(request.tokens(i).ids().begin(), request.tokens(i).ids().end());
    }
    RETURN_IF_ERROR(CheckPromptTokens(input, field, model));
    if (input.size() > model.context_tokens) {
      errors.Add(field,
                 absl::StrCat("has ", input.size(), " tokens, the context holds ",
                              model.context_tokens, "; embed it in pieces"),
                 kReasonPromptTooLong);
    }
  }
  RETURN_IF_ERROR(errors.ToStatus());
  return inputs;
}

}  // namespace

absl::StatusOr<PreparedRequest> PrepareEmbed(const v1::EmbedRequest& request,
                                             const ServedModel& model) {
  RETURN_IF_ERROR(CheckFields(request, model));
  RETURN_IF_ERROR(CheckModelName(model, request.model()));

  PreparedRequest prepared;
  ASSIGN_OR_RETURN(prepared.more_inputs, InputsOf(request, model));
  GenerateRequest& out = prepared.engine;
  out.prompt_tokens = std::move(prepared.more_inputs.front());
  prepared.more_inputs.erase(prepared.more_inputs.begin());
  out.request_id = request.has_request_id() ? request.request_id() : DrawRequestId();
  out.pooling =
      request.pooling() == v1::POOLING_MEAN ? internal::POOLING_MEAN : internal::POOLING_LAST;
  out.priority = request.priority();
  out.batch = request.service_class() == v1::SERVICE_CLASS_BATCH;
  out.cache_salt = request.cache_salt();
  prepared.started.set_request_id(out.request_id);
  return prepared;
}

}  // namespace bitshard
