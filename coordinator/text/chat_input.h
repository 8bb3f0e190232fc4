// A conversation as callers give it, and as chat templates want to see it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace bitshard {

struct ChatToolCall {
  std::string id = {};
  std::string name = {};
  std::string arguments_json = {};  // a JSON object; empty: no arguments
};

struct ChatMessage {
  std::string role = {};
  std::optional<std::string> content = {};
  std::string reasoning = {};  // empty: none; so are name and tool_call_id
  std::vector<ChatToolCall> tool_calls = {};
  std::string tool_call_id = {};
  std::string name = {};
};

struct ChatTool {
  std::string name = {};
  std::string description = {};      // empty: none
  std::string parameters_json = {};  // a JSON object; empty: no parameters
};

struct ChatInput {
  std::vector<ChatMessage> messages = {};
  std::vector<ChatTool> tools = {};
  std::string variables_json = {};  // a JSON object of further variables; may be empty
  bool add_generation_prompt = true;
  absl::Time now = absl::UnixEpoch();  // for templates that write the date
};

}  // namespace bitshard
