#include "coordinator/text/chat_variables.h"

#include <algorithm>
#include <iterator>

#include "coordinator/text/chat_template.h"
#include "coordinator/text/concat.h"
#include "coordinator/text/jinja_json.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using Value = JinjaValue;

constexpr std::string_view kOwnFields[] = {"messages", "tools", "add_generation_prompt",
                                           "bos_token", "eos_token"};
constexpr size_t kMaxVariables = 256;  // names are looked up one by one
constexpr std::string_view kNoParameters = R"({"type": "object", "properties": {}})";

absl::Status InField(std::string_view field, const absl::Status& status) {
  return absl::Status(status.code(), Concat(field, ": ", std::string(status.message())));
}

absl::StatusOr<Value> Text(const std::string& text, std::string_view field, JinjaHeap* heap) {
  if (FirstInvalidUtf8(text).has_value()) {
    return absl::InvalidArgumentError(Concat(field, " is not valid UTF-8"));
  }
  return heap->NewText(JinjaText::Foreign(text));
}

absl::StatusOr<Value> Object(std::string_view json, std::string_view field, JinjaHeap* heap) {
  absl::StatusOr<Value> value = JinjaFromJson(json, /*own=*/false, heap);
  if (!value.ok()) return InField(field, value.status());
  if (!value->is_dict()) return absl::InvalidArgumentError(Concat(field, " is no JSON object"));
  return value;
}

// Roles are structure, not content: templates may build control tokens around them ("<|user|>"). A
// word cannot be one by itself.
absl::StatusOr<Value> Role(const std::string& role, std::string_view field, JinjaHeap* heap) {
  const bool word = std::all_of(role.begin(), role.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
  return word ? heap->NewString(role) : Text(role, field, heap);
}

absl::StatusOr<Value> Calls(const ChatMessage& message, std::string_view where,
                            const ChatConventions& conventions, JinjaHeap* heap) {
  std::vector<Value> calls;
  for (size_t i = 0; i < message.tool_calls.size(); ++i) {
    const ChatToolCall& call = message.tool_calls[i];
    const std::string field = Concat(where, "tool_calls[", i, "].");
    JinjaDict* function = heap->NewDict();
    ASSIGN_OR_RETURN(Value name, Text(call.name, field + "name", heap));
    function->Set("name", std::move(name));
    const std::string& json = call.arguments_json;
    Value arguments;
    if (conventions.arguments_as_text) {
      ASSIGN_OR_RETURN(arguments, Text(json.empty() ? "{}" : json, field + "arguments_json", heap));
    } else {
      ASSIGN_OR_RETURN(arguments,
                       Object(json.empty() ? "{}" : json, field + "arguments_json", heap));
    }
    function->Set("arguments", std::move(arguments));
    JinjaDict* dict = heap->NewDict();
    if (!call.id.empty()) {
      ASSIGN_OR_RETURN(Value id, Text(call.id, field + "id", heap));
      dict->Set("id", std::move(id));
    }
    dict->Set("type", Value::String("function"));
    dict->Set("function", Value::Dict(function));
    calls.push_back(Value::Dict(dict));
  }
  return Value::List(heap->NewList(std::move(calls)));
}

absl::StatusOr<Value> Message(const ChatMessage& message, size_t index,
                              const ChatConventions& conventions, JinjaHeap* heap) {
  const std::string where = Concat("messages[", index, "].");
  JinjaDict* dict = heap->NewDict();
  ASSIGN_OR_RETURN(Value role, Role(message.role, where + "role", heap));
  dict->Set("role", std::move(role));

  const bool none = !message.content.has_value() && !message.tool_calls.empty() &&
                    conventions.content_may_be_none;
  Value content = Value::MakeNone();
  if (!none) {
    ASSIGN_OR_RETURN(content, Text(message.content.value_or(""), where + "content", heap));
    if (conventions.content_in_parts) {
      JinjaDict* part = heap->NewDict();
      part->Set("type", Value::String("text"));
      part->Set("text", std::move(content));
      content = Value::List(heap->NewList({Value::Dict(part)}));
    }
  }
  dict->Set("content", std::move(content));

  const auto set = [&](std::string_view key, const std::string& text,
                       std::string_view field) -> absl::Status {
    if (text.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(Value value, Text(text, Concat(where, field), heap));
    dict->Set(key, std::move(value));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(set("reasoning_content", message.reasoning, "reasoning"));
  if (conventions.reasoning_is_thinking) {
    RETURN_IF_ERROR(set("thinking", message.reasoning, "reasoning"));
  }
  if (!message.tool_calls.empty()) {
    ASSIGN_OR_RETURN(Value calls, Calls(message, where, conventions, heap));
    dict->Set("tool_calls", std::move(calls));
  }
  RETURN_IF_ERROR(set("tool_call_id", message.tool_call_id, "tool_call_id"));
  RETURN_IF_ERROR(set("name", message.name, "name"));
  return Value::Dict(dict);
}

absl::StatusOr<Value> Tools(const std::vector<ChatTool>& tools, JinjaHeap* heap) {
  if (tools.empty()) return Value::MakeNone();
  std::vector<Value> list;
  for (size_t i = 0; i < tools.size(); ++i) {
    const ChatTool& tool = tools[i];
    const std::string field = Concat("tools[", i, "].");
    JinjaDict* function = heap->NewDict();
    ASSIGN_OR_RETURN(Value name, Text(tool.name, field + "name", heap));
    function->Set("name", std::move(name));
    if (!tool.description.empty()) {
      ASSIGN_OR_RETURN(Value description, Text(tool.description, field + "description", heap));
      function->Set("description", std::move(description));
    }
    ASSIGN_OR_RETURN(Value parameters,
                     Object(tool.parameters_json.empty() ? kNoParameters : tool.parameters_json,
                            field + "parameters_json", heap));
    function->Set("parameters", std::move(parameters));
    JinjaDict* dict = heap->NewDict();
    dict->Set("type", Value::String("function"));
    dict->Set("function", Value::Dict(function));
    list.push_back(Value::Dict(dict));
  }
  return Value::List(heap->NewList(std::move(list)));
}

}  // namespace

absl::Status CheckJsonObject(std::string_view text) {
  JinjaHeap heap;
  ASSIGN_OR_RETURN(const Value value, JinjaFromJson(text, /*own=*/false, &heap));
  return value.is_dict() ? absl::OkStatus()
                         : absl::InvalidArgumentError("JSON, but no JSON object");
}

absl::Status CheckTemplateVariables(std::string_view json) {
  JinjaHeap heap;
  ASSIGN_OR_RETURN(const Value value, JinjaFromJson(json, /*own=*/false, &heap));
  if (!value.is_dict()) return absl::InvalidArgumentError("JSON, but no JSON object");
  if (value.dict().items.size() > kMaxVariables) {
    return absl::InvalidArgumentError(Concat(
        "has ", value.dict().items.size(), " variables; at most ", kMaxVariables, " may be given"));
  }
  for (const auto& [name, variable] : value.dict().items) {
    if (std::find(std::begin(kOwnFields), std::end(kOwnFields), name) == std::end(kOwnFields)) {
      continue;
    }
    return absl::InvalidArgumentError(Concat(
        "\"", name, "\" cannot be given as a variable: it comes from the chat or the model"));
  }
  return absl::OkStatus();
}

absl::StatusOr<JinjaVariables> VariablesFromJson(std::string_view json, JinjaHeap* heap) {
  ASSIGN_OR_RETURN(const Value object, Object(json, "template_variables_json", heap));
  JinjaVariables variables;
  for (const auto& [name, value] : object.dict().items) variables.emplace_back(name, value);
  return variables;
}

absl::StatusOr<JinjaVariables> ChatVariables(const ChatInput& chat,
                                             const ChatConventions& conventions, JinjaHeap* heap) {
  JinjaVariables variables;
  variables.emplace_back("documents", Value::MakeNone());
  if (!chat.variables_json.empty()) {
    ASSIGN_OR_RETURN(const JinjaVariables given, VariablesFromJson(chat.variables_json, heap));
    variables.insert(variables.end(), given.begin(), given.end());
  }
  std::vector<Value> messages;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    ASSIGN_OR_RETURN(Value message, Message(chat.messages[i], i, conventions, heap));
    messages.push_back(std::move(message));
  }
  variables.emplace_back("messages", Value::List(heap->NewList(std::move(messages))));
  ASSIGN_OR_RETURN(Value tools, Tools(chat.tools, heap));
  variables.emplace_back("tools", std::move(tools));
  variables.emplace_back("add_generation_prompt", Value::Bool(chat.add_generation_prompt));
  return variables;
}

}  // namespace bitshard
