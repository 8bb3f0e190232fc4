// A chat of the API as a prompt: its fields checked, rendered by the model's template, tokenized.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "coordinator/frontend/field_errors.h"
#include "coordinator/frontend/served_model.h"
#include "coordinator/text/chat_template.h"
#include "proto/inference.pb.h"

namespace bitshard {

// `field`: where the chat stands in the request, for errors; below too.
void CheckChat(const v1::Chat& chat, const ServedModel& model, const std::string& field,
               FieldErrors& errors);

// The prompt's text. UNIMPLEMENTED for pictures and sounds, and without a usable template.
// REQUIRES: CheckChat found nothing.
absl::StatusOr<RenderedChat> RenderChat(const v1::Chat& chat, const ServedModel& model,
                                        const std::string& field, absl::Time now);

// Control tokens come from the template's text only, BOS included.
absl::StatusOr<std::vector<int32_t>> TokenizeChat(const RenderedChat& rendered,
                                                  const ServedModel& model);

// The chat's tools, for the parser of the answer. Shared with it: it outlives the request's
// message.
std::shared_ptr<const std::vector<ChatTool>> ToolsOf(const v1::Chat& chat);

}  // namespace bitshard
