#include "coordinator/frontend/text_methods.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "coordinator/frontend/chat_prompt.h"
#include "coordinator/frontend/prepare_request.h"
#include "kernels/base/status_macros.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

// Of Tokenize, whose texts need not fit the context: some below what a message may have
// (server.cc).
constexpr uint64_t kMaxTokenizedBytes = 8'000'000;

}  // namespace

absl::Status Tokenize(const ServedModel& model, const v1::TokenizeRequest& request,
                      v1::TokenizeResponse* response) {
  RETURN_IF_ERROR(CheckModelName(model, request.model()));
  if (request.text().size() > kMaxTokenizedBytes) {
    return BadFieldError("text", absl::StrCat("must have at most ", kMaxTokenizedBytes,
                                              " bytes, not ", request.text().size()));
  }
  EncodeOptions options;
  if (request.has_add_special()) options.add_special = request.add_special();
  options.parse_special = request.parse_special();
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                   model.tokenizer->Encode(request.text(), options));
  for (const int32_t token : tokens) {
    response->add_token_ids(static_cast<uint32_t>(token));
    if (request.token_texts()) {
      const std::string_view bytes = model.tokenizer->TokenBytes(token);
      response->add_token_texts(bytes.data(), bytes.size());
    }
  }
  return absl::OkStatus();
}

absl::Status Detokenize(const ServedModel& model, const v1::DetokenizeRequest& request,
                        v1::DetokenizeResponse* response) {
  RETURN_IF_ERROR(CheckModelName(model, request.model()));
  std::vector<int32_t> tokens;
  tokens.reserve(request.token_ids_size());
  for (int i = 0; i < request.token_ids_size(); ++i) {
    if (request.token_ids(i) >= model.vocabulary_size) {
      return BadFieldError(absl::StrCat("token_ids[", i, "]"),
                           absl::StrCat("must be below the vocabulary size ", model.vocabulary_size,
                                        ", not ", request.token_ids(i)));
    }
    tokens.push_back(static_cast<int32_t>(request.token_ids(i)));
  }
  response->set_text(model.tokenizer->Decode(tokens, request.skip_special_tokens()));
  return absl::OkStatus();
}

absl::Status ApplyChatTemplate(const ServedModel& model,
                               const v1::ApplyChatTemplateRequest& request,
                               v1::ApplyChatTemplateResponse* response) {
  RETURN_IF_ERROR(CheckModelName(model, request.model()));
  FieldErrors errors;
  CheckChat(request.chat(), model, "chat", errors);
  RETURN_IF_ERROR(errors.ToStatus());
  ASSIGN_OR_RETURN(const RenderedChat rendered,
                   RenderChat(request.chat(), model, "chat", absl::Now()));
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, TokenizeChat(rendered, model));
  response->set_text(rendered.text);
  for (const int32_t token : tokens) response->add_token_ids(static_cast<uint32_t>(token));
  return absl::OkStatus();
}

absl::Status ListModels(const ServedModel& model, const v1::ListModelsRequest&,
                        v1::ListModelsResponse* response) {
  for (const std::string& name : model.names) {
    v1::Model& out = *response->add_models();
    out.set_name(name);
    out.set_fingerprint(model.fingerprint);
    out.set_family(model.family);
    out.set_context_tokens(model.context_tokens);
    out.set_vocabulary_size(model.vocabulary_size);
    for (const std::string& format : model.weight_formats) out.add_weight_formats(format);
    out.set_kv_cache_type(model.kv_cache_type);
    out.set_activations(model.activations);
    out.set_embedding_size(model.embedding_size);
    out.set_chat(model.chat_template != nullptr);
    if (model.output_format == nullptr) continue;
    if (const std::string_view format = model.output_format->tool_call_name(); !format.empty())
      out.set_tool_call_format(std::string(format));
    if (const std::string_view format = model.output_format->reasoning_name(); !format.empty())
      out.set_reasoning_format(std::string(format));
  }
  return absl::OkStatus();
}

}  // namespace bitshard
