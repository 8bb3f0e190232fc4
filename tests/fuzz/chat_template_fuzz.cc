// Anything as a chat template; what is accepted then renders a conversation with all there can be.
#include <cstdint>
#include <string_view>

#include "coordinator/text/chat_template.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bitshard;
  const auto chat = ChatTemplate::Parse(std::string_view(reinterpret_cast<const char*>(data), size),
                                        "<s>", "</s>");
  if (!chat.ok()) return 0;
  ChatInput input;
  input.messages = {{.role = "system", .content = " s\n"},
                    {.role = "user", .content = "h\u00e9 'q'"}};
  ChatMessage calls{.role = "assistant", .reasoning = "r"};
  calls.tool_calls = {{.id = "abcdefgh1", .name = "f", .arguments_json = R"({"a": [1, null]})"}};
  input.messages.push_back(calls);
  input.messages.push_back(
      {.role = "tool", .content = "5", .tool_call_id = "abcdefgh1", .name = "f"});
  input.tools = {{.name = "f", .description = "d"}};
  input.variables_json = R"({"enable_thinking": true, "documents": [{"text": "t"}]})";
  const auto out = chat->Render(input);
  if (out.ok()) {
    CHECK(!FirstInvalidUtf8(out->text).has_value());
    size_t done = 0;  // the caller's parts: ascending, apart, inside, whole characters
    for (const TextSpan& span : out->plain) {
      CHECK(span.begin >= done && span.begin < span.end && span.end <= out->text.size());
      CHECK(!FirstInvalidUtf8(out->text.substr(span.begin, span.end - span.begin)).has_value());
      done = span.end + 1;
    }
  }
  (void)chat->Render({});
  return 0;
}
