#include "coordinator/text/chat_template.h"

#include <utility>

#include "coordinator/text/chat_variables.h"
#include "coordinator/text/jinja_interpreter.h"
#include "coordinator/text/jinja_parser.h"
#include "coordinator/text/jinja_value.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

// A text that no template writes by itself.
constexpr char kProbe[] = "bitshardprobe";

absl::StatusOr<RenderedChat> RunProgram(const JinjaTemplate& program, JinjaVariables variables,
                                        const std::string& bos_token, const std::string& eos_token,
                                        absl::Time now, JinjaHeap* heap) {
  variables.emplace_back("bos_token", JinjaValue::String(bos_token));
  variables.emplace_back("eos_token", JinjaValue::String(eos_token));
  JinjaText out;
  RETURN_IF_ERROR(JinjaInterpreter(std::move(variables), now, heap).Run(program, &out));
  return RenderedChat{.text = out.bytes(), .plain = out.foreign()};
}

int CountNone(const RenderedChat& chat) {
  int count = 0;
  for (size_t at = chat.text.find("None"); at != std::string::npos;
       at = chat.text.find("None", at + 1)) {
    ++count;
  }
  return count;
}

bool ShowsProbe(const absl::StatusOr<RenderedChat>& rendered) {
  return rendered.ok() && rendered->text.find(kProbe) != std::string::npos;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, std::unique_ptr<const JinjaTemplate> program,
                           std::string bos_token, std::string eos_token)
    : source_(std::move(source)),
      program_(std::move(program)),
      bos_token_(std::move(bos_token)),
      eos_token_(std::move(eos_token)) {}

ChatTemplate::ChatTemplate(ChatTemplate&&) = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view jinja_source,
                                                 std::string_view bos_token,
                                                 std::string_view eos_token) {
  ASSIGN_OR_RETURN(std::unique_ptr<const JinjaTemplate> program, ParseJinja(jinja_source));
  ChatTemplate chat(std::string(jinja_source), std::move(program), std::string(bos_token),
                    std::string(eos_token));
  chat.conventions_ = std::make_unique<const ChatConventions>(chat.FindConventions());
  return chat;
}

ChatConventions ChatTemplate::FindConventions() const {
  ChatConventions found;
  for (const char* use : {".thinking", "['thinking']", "[\"thinking\"]"}) {
    found.reasoning_is_thinking |= source_.find(use) != source_.npos;
  }
  ChatInput chat;
  chat.messages.push_back({.role = "user", .content = kProbe});
  if (!ShowsProbe(RenderWith(chat, found))) {
    ChatConventions parts = found;
    parts.content_in_parts = true;
    if (ShowsProbe(RenderWith(chat, parts))) found = parts;
  }
  if (source_.find("tool_calls") == source_.npos) return found;

  chat.tools.push_back({.name = "f", .description = "d"});
  chat.messages[0].content = std::string("q");
  ChatMessage call{.role = "assistant"};
  call.tool_calls.push_back({.id = "abcdefgh1",
                             .name = "f",
                             .arguments_json = std::string("{\"k\": \"") + kProbe + "\"}"});
  chat.messages.push_back(call);
  chat.messages.push_back(
      {.role = "tool", .content = "r", .tool_call_id = "abcdefgh1", .name = "f"});
  for (const bool as_text : {false, true}) {
    ChatConventions tried = found;
    tried.arguments_as_text = as_text;
    const absl::StatusOr<RenderedChat> with_empty = RenderWith(chat, tried);
    tried.content_may_be_none = true;
    const absl::StatusOr<RenderedChat> with_none = RenderWith(chat, tried);
    // A template that does not expect it fails, or prints "None".
    if (ShowsProbe(with_none) &&
        CountNone(*with_none) <= (with_empty.ok() ? CountNone(*with_empty) : 0)) {
      return tried;
    }
    tried.content_may_be_none = false;
    if (ShowsProbe(with_empty)) return tried;
  }
  return found;
}

absl::StatusOr<RenderedChat> ChatTemplate::RenderWith(const ChatInput& chat,
                                                      const ChatConventions& conventions) const {
  JinjaHeap heap;
  ASSIGN_OR_RETURN(JinjaVariables variables, ChatVariables(chat, conventions, &heap));
  return RunProgram(*program_, std::move(variables), bos_token_, eos_token_, chat.now, &heap);
}

absl::StatusOr<RenderedChat> ChatTemplate::Render(const ChatInput& chat) const {
  return RenderWith(chat, *conventions_);
}

absl::StatusOr<RenderedChat> ChatTemplate::RenderVariables(std::string_view json,
                                                           absl::Time now) const {
  JinjaHeap heap;
  ASSIGN_OR_RETURN(JinjaVariables variables, VariablesFromJson(json, &heap));
  return RunProgram(*program_, std::move(variables), bos_token_, eos_token_, now, &heap);
}

}  // namespace bitshard
