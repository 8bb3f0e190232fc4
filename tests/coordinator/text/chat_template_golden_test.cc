#include <cstdio>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "coordinator/text/chat_template.h"
#include "tests/coordinator/text/golden_tokenizer.h"

namespace bitshard {
namespace {

using nlohmann::json;

class ChatGolden : public testing::TestWithParam<const char*> {};

TEST_P(ChatGolden, RendersEveryPlainConversationByteForByte) {
  const json golden =
      json::parse(ReadFileOrDie(GoldenFile(std::string("chat/") + GetParam() + ".json")));
  const std::string source =
      ReadFileOrDie(GoldenFile("chat/" + golden["template"].get<std::string>()));
  const std::string bos = golden["bos_token"].is_string() ? golden["bos_token"] : "";
  const std::string eos = golden["eos_token"].is_string() ? golden["eos_token"] : "";
  const auto chat = ChatTemplate::Parse(source, bos, eos);
  ASSERT_TRUE(chat.ok()) << chat.status();

  int run = 0;
  for (const json& c : golden["cases"]) {
    std::vector<ChatMessage> messages;
    bool plain = true;
    for (const json& message : c["messages"]) {
      if (!message["content"].is_string()) {
        plain = false;
        break;
      }
      messages.push_back({message["role"], message["content"]});
    }
    if (!plain) {
      std::printf("skipped %s: a content that is no string cannot be given yet\n",
                  c["name"].get<std::string>().c_str());
      continue;
    }
    // tools, tool_calls, reasoning_content and enable_thinking are left out: these templates do not
    // look at them.
    ++run;
    const auto rendered = chat->Render(messages, c["add_generation_prompt"]);
    if (c.contains("error")) {
      EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument)
          << c["name"] << ": " << rendered.status();
    } else {
      ASSERT_TRUE(rendered.ok()) << c["name"] << ": " << rendered.status();
      EXPECT_EQ(*rendered, c["rendered"].get<std::string>()) << c["name"];
    }
  }
  EXPECT_EQ(run, 20);
}

INSTANTIATE_TEST_SUITE_P(Templates, ChatGolden,
                         testing::Values("smollm2", "chatml", "llama3-style", "gemma3-style"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace bitshard
