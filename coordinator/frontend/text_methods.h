// Tokenize, Detokenize, ApplyChatTemplate, ListModels: what needs the model's files but no worker.
// Pure functions.
#pragma once

#include "absl/status/status.h"

#include "coordinator/frontend/served_model.h"
#include "proto/inference.pb.h"

namespace bitshard {

absl::Status Tokenize(const ServedModel& model, const v1::TokenizeRequest& request,
                      v1::TokenizeResponse* response);
absl::Status Detokenize(const ServedModel& model, const v1::DetokenizeRequest& request,
                        v1::DetokenizeResponse* response);
absl::Status ApplyChatTemplate(const ServedModel& model,
                               const v1::ApplyChatTemplateRequest& request,
                               v1::ApplyChatTemplateResponse* response);
absl::Status ListModels(const ServedModel& model, const v1::ListModelsRequest& request,
                        v1::ListModelsResponse* response);

}  // namespace bitshard
