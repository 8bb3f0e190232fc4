#include "coordinator/text/chat_template.h"

#include <utility>
#include <vector>

#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_interpreter.h"
#include "coordinator/text/jinja_parser.h"
#include "coordinator/text/jinja_value.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

absl::Status CheckMessage(const ChatMessage& message, size_t index) {
  for (const auto& [field, text] :
       {std::pair{"role", &message.role}, std::pair{"content", &message.content}}) {
    if (FirstInvalidUtf8(*text).has_value()) {
      return absl::InvalidArgumentError(
          Concat("message ", index, ": ", field, " is not valid UTF-8"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ChatTemplate::ChatTemplate(std::unique_ptr<const JinjaTemplate> program, std::string bos_token,
                           std::string eos_token)
    : program_(std::move(program)),
      bos_token_(std::move(bos_token)),
      eos_token_(std::move(eos_token)) {}

ChatTemplate::ChatTemplate(ChatTemplate&&) = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<ChatTemplate> ChatTemplate::Parse(std::string_view jinja_source,
                                                 std::string_view bos_token,
                                                 std::string_view eos_token) {
  ASSIGN_OR_RETURN(std::unique_ptr<const JinjaTemplate> program, ParseJinja(jinja_source));
  return ChatTemplate(std::move(program), std::string(bos_token), std::string(eos_token));
}

absl::StatusOr<std::string> ChatTemplate::Render(absl::Span<const ChatMessage> messages,
                                                 bool add_generation_prompt) const {
  JinjaHeap heap;
  std::vector<JinjaValue> list;
  for (size_t i = 0; i < messages.size(); ++i) {
    RETURN_IF_ERROR(CheckMessage(messages[i], i));
    JinjaDict* dict = heap.NewDict();
    dict->Set("role", JinjaValue::String(messages[i].role));
    dict->Set("content", JinjaValue::String(messages[i].content));
    list.push_back(JinjaValue::Dict(dict));
  }
  std::vector<std::pair<std::string, JinjaValue>> variables;
  variables.emplace_back("messages", JinjaValue::List(heap.NewList(std::move(list))));
  variables.emplace_back("add_generation_prompt", JinjaValue::Bool(add_generation_prompt));
  variables.emplace_back("bos_token", JinjaValue::String(bos_token_));
  variables.emplace_back("eos_token", JinjaValue::String(eos_token_));
  std::string out;
  RETURN_IF_ERROR(JinjaInterpreter(std::move(variables), &heap).Run(*program_, &out));
  return out;
}

}  // namespace bitshard
