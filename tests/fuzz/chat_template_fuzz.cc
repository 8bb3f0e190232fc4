// Anything as a chat template; what is accepted then renders a conversation.
#include <cstdint>
#include <string_view>
#include <vector>

#include "coordinator/text/chat_template.h"
#include "coordinator/text/utf8.h"
#include "kernels/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace bitshard;
  const auto chat = ChatTemplate::Parse(std::string_view(reinterpret_cast<const char*>(data), size),
                                        "<s>", "</s>");
  if (!chat.ok()) return 0;
  const std::vector<ChatMessage> messages = {
      {"system", " s\n"}, {"user", "h\u00e9 'q'"}, {"assistant", ""}};
  const auto out = chat->Render(messages, true);
  CHECK(!out.ok() || !FirstInvalidUtf8(*out).has_value());
  (void)chat->Render({}, false);
  return 0;
}
