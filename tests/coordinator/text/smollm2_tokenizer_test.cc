#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/text/chat_template.h"
#include "coordinator/text/tokenizer.h"
#include "tests/coordinator/text/golden_tokenizer.h"

namespace bitshard {
namespace {

using nlohmann::json;

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    if (SmolLm2Path().empty()) GTEST_SKIP() << "no model: tests/run.sh fetches it";
    auto checkpoint = OpenCheckpoint(SmolLm2Path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    auto tokenizer = Tokenizer::FromGgufVocab(std::get<GgufVocab>(checkpoint_.tokenizer));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  Checkpoint checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(SmolLm2, EncodesThePromptsAsLlamaCppDoes) {
  const json golden = json::parse(ReadFileOrDie(GoldenFile("smollm2-llamacpp.json")));
  int prompts = 0;
  for (const json& run : golden["runs"]) {
    for (const json& prompt : run) {
      const std::string text = prompt["prompt"];
      const auto ids = tokenizer_->Encode(text, {.add_special = true, .parse_special = true});
      ASSERT_TRUE(ids.ok()) << ids.status();
      EXPECT_EQ(*ids, prompt["prompt_tokens"].get<std::vector<int32_t>>()) << text;
      EXPECT_EQ(tokenizer_->Decode(*ids, false), text);
      ++prompts;
    }
  }
  EXPECT_EQ(prompts, 15);
  EXPECT_EQ(tokenizer_->vocab_size(), 49152);
  EXPECT_EQ(tokenizer_->eos_ids(), (std::vector<int32_t>{0, 2}));
}

TEST_F(SmolLm2, ItsChatTemplateMakesControlTokens) {
  const auto chat =
      ChatTemplate::Parse(checkpoint_.chat_template, checkpoint_.bos_token, checkpoint_.eos_token);
  ASSERT_TRUE(chat.ok()) << chat.status();
  const auto prompt = chat->Render({.messages = {{.role = "user", .content = "Hi"}}});
  ASSERT_TRUE(prompt.ok()) << prompt.status();
  const auto ids = tokenizer_->Encode(
      prompt->text, {.add_special = false, .parse_special = true, .plain = prompt->plain});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->front(), 1);                             // <|im_start|>
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 1), 3);  // system, user, assistant
  EXPECT_EQ(std::count(ids->begin(), ids->end(), 2), 2);  // <|im_end|>
}

}  // namespace
}  // namespace bitshard
