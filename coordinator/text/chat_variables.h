// A ChatInput as variables of a template: the shape of OpenAI's messages and tools, as transformers
// passes it on.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "coordinator/text/chat_input.h"
#include "coordinator/text/jinja_value.h"

namespace bitshard {

// What templates differ in; found out by trying when a template is loaded.
struct ChatConventions {
  bool content_in_parts = false;  // [{"type": "text", "text": ...}] in place of a string
  // Of an assistant's turn that has calls of tools and no content: none, else "".
  bool content_may_be_none = false;
  bool arguments_as_text = false;      // JSON text in place of an object
  bool reasoning_is_thinking = false;  // message.thinking
};

using JinjaVariables = std::vector<std::pair<std::string, JinjaValue>>;

// INVALID_ARGUMENT, with the place, for what is not valid UTF-8 or no JSON.
absl::StatusOr<JinjaVariables> ChatVariables(const ChatInput& chat,
                                             const ChatConventions& conventions, JinjaHeap* heap);

// The members of a JSON object.
absl::StatusOr<JinjaVariables> VariablesFromJson(std::string_view json, JinjaHeap* heap);

}  // namespace bitshard
