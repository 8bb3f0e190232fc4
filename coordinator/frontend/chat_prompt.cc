#include "coordinator/frontend/chat_prompt.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "coordinator/engine/error_reason.h"
#include "coordinator/frontend/prepare_request.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr int kMaxMessages = 4096;
constexpr int kMaxTools = 1024;
constexpr int kMaxCalls = 1024;  // of a message

uint64_t BytesOf(const v1::Chat& chat) {
  uint64_t bytes = chat.template_variables_json().size();
  for (const v1::ChatMessage& message : chat.messages()) {
    bytes += message.content().size() + message.reasoning().size() + message.name().size() +
             message.role().size() + message.tool_call_id().size();
    for (const v1::ToolCall& call : message.tool_calls())
      bytes += call.name().size() + call.arguments_json().size() + call.id().size();
  }
  for (const v1::Tool& tool : chat.tools())
    bytes += tool.name().size() + tool.description().size() + tool.parameters_json().size();
  return bytes;
}

void CheckObject(const std::string& json, const std::string& field, FieldErrors& errors) {
  if (json.empty()) return;
  const absl::Status status = CheckJsonObject(json);
  if (!status.ok()) errors.Add(field, absl::StrCat("must be a JSON object: ", status.message()));
}

void CheckMessage(const v1::ChatMessage& message, const std::string& where, FieldErrors& errors) {
  if (message.role().empty()) {
    errors.Add(where + "role", "must be set: \"system\", \"user\" or \"assistant\"");
  }
  if (message.tool_calls_size() > kMaxCalls) {
    errors.Add(where + "tool_calls",
               absl::StrCat("at most ", kMaxCalls, ", not ", message.tool_calls_size()));
    return;
  }
  for (int i = 0; i < message.tool_calls_size(); ++i) {
    const std::string call = absl::StrCat(where, "tool_calls[", i, "].");
    if (message.tool_calls(i).name().empty()) errors.Add(call + "name", "must be set");
    CheckObject(message.tool_calls(i).arguments_json(), call + "arguments_json", errors);
  }
}

ChatMessage MessageOf(const v1::ChatMessage& in) {
  ChatMessage out;
  out.role = in.role();
  if (in.has_content()) out.content = in.content();
  out.reasoning = in.reasoning();
  for (const v1::ToolCall& call : in.tool_calls())
    out.tool_calls.push_back({call.id(), call.name(), call.arguments_json()});
  out.tool_call_id = in.tool_call_id();
  out.name = in.name();
  return out;
}

}  // namespace

void CheckChat(const v1::Chat& chat, const ServedModel& model, const std::string& field,
               FieldErrors& errors) {
  const std::string messages = field + ".messages";
  if (chat.messages().empty()) errors.Add(messages, "must not be empty");
  if (chat.messages_size() > kMaxMessages) {
    errors.Add(messages, absl::StrCat("at most ", kMaxMessages, ", not ", chat.messages_size()));
    return;
  }
  if (chat.tools_size() > kMaxTools) {
    errors.Add(field + ".tools", absl::StrCat("at most ", kMaxTools, ", not ", chat.tools_size()));
    return;
  }
  if (const uint64_t bytes = BytesOf(chat); bytes > MaxTextBytes(model)) {
    errors.Add(
        messages,
        absl::StrCat(bytes, " bytes, tools and variables included, cannot fit the context of ",
                     model.context_tokens, " tokens"),
        kReasonPromptTooLong);
    return;
  }
  for (int i = 0; i < chat.messages_size(); ++i) {
    CheckMessage(chat.messages(i), absl::StrCat(messages, "[", i, "]."), errors);
  }
  for (int i = 0; i < chat.tools_size(); ++i) {
    const std::string where = absl::StrCat(field, ".tools[", i, "].");
    if (chat.tools(i).name().empty()) errors.Add(where + "name", "must be set");
    CheckObject(chat.tools(i).parameters_json(), where + "parameters_json", errors);
  }
  if (chat.template_variables_json().empty()) return;
  const absl::Status variables = CheckTemplateVariables(chat.template_variables_json());
  if (!variables.ok()) {
    errors.Add(field + ".template_variables_json",
               absl::StrCat("must be a JSON object: ", variables.message()));
  }
}

absl::StatusOr<RenderedChat> RenderChat(const v1::Chat& chat, const ServedModel& model,
                                        const std::string& field, absl::Time now) {
  ChatInput input;
  std::vector<std::string> media;
  for (int i = 0; i < chat.messages_size(); ++i) {
    if (!chat.messages(i).media().empty() && media.size() < 16) {
      media.push_back(absl::StrCat(field, ".messages[", i, "].media"));
    }
    input.messages.push_back(MessageOf(chat.messages(i)));
  }
  if (!media.empty()) {
    return absl::UnimplementedError(absl::StrCat("not built yet: ", absl::StrJoin(media, ", "),
                                                 "; built: text, tools, reasoning, variables"));
  }
  if (model.chat_template == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        field, ": ",
        model.chat_refusal.ok() ? "this model has no chat template" : model.chat_refusal.message(),
        "; send text or tokens instead"));
  }
  input.tools = *ToolsOf(chat);
  input.variables_json = chat.template_variables_json();
  input.add_generation_prompt =
      chat.has_add_generation_prompt() ? chat.add_generation_prompt() : true;
  input.now = now;
  absl::StatusOr<RenderedChat> rendered = model.chat_template->Render(input);
  if (rendered.ok() || rendered.status().code() == absl::StatusCode::kUnimplemented)
    return rendered;
  return BadFieldError(field, rendered.status().message());
}

absl::StatusOr<std::vector<int32_t>> TokenizeChat(const RenderedChat& rendered,
                                                  const ServedModel& model) {
  return model.tokenizer->Encode(
      rendered.text, {.add_special = false, .parse_special = true, .plain = rendered.plain});
}

std::shared_ptr<const std::vector<ChatTool>> ToolsOf(const v1::Chat& chat) {
  auto tools = std::make_shared<std::vector<ChatTool>>();
  for (const v1::Tool& tool : chat.tools())
    tools->push_back({tool.name(), tool.description(), tool.parameters_json()});
  return tools;
}

}  // namespace bitshard
