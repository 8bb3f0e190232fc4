#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "coordinator/text/detokenizer.h"
#include "coordinator/text/gguf_vocab.h"
#include "coordinator/text/tokenizer.h"
#include "tests/coordinator/text/golden_tokenizer.h"

namespace bitshard {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

// The dialect's files as a GGUF converter writes them.
GgufVocab AsGguf(const std::string& dialect, const std::string& pre) {
  const json file = GoldenTokenizerJson(dialect, "tokenizer.json");
  GgufVocab vocab;
  vocab.model = "gpt2";
  vocab.pre = pre;
  const size_t size = GoldenTokenizerJson(dialect, "golden.json")["vocab_size"];
  vocab.tokens.resize(size);
  vocab.token_types.assign(size, 1);
  for (const auto& [text, id] : file["model"]["vocab"].items()) vocab.tokens[id] = text;
  for (const json& added : file["added_tokens"]) {
    vocab.tokens[added["id"]] = added["content"];
    vocab.token_types[added["id"]] = added["special"] ? 3 : 4;
  }
  for (const json& merge : file["model"]["merges"]) {
    vocab.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return vocab;
}

void ExpectGoldenIds(const Tokenizer& tokenizer, const json& golden) {
  for (const json& c : golden["cases"]) {
    const std::string text = c["text"];
    const auto plain = tokenizer.Encode(text, {.add_special = false, .parse_special = true});
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_EQ(*plain, c["ids"].get<Ids>()) << c["text"];
    const json& expected = c.contains("ids_with_special") ? c["ids_with_special"] : c["ids"];
    const auto whole = tokenizer.Encode(text, {.add_special = true, .parse_special = true});
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_EQ(*whole, expected.get<Ids>()) << c["text"];
  }
}

class TokenizerGolden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    tokenizer_ = GoldenTokenizer(GetParam());
    ASSERT_NE(tokenizer_, nullptr);
    golden_ = GoldenTokenizerJson(GetParam(), "golden.json");
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  json golden_;
};

TEST_P(TokenizerGolden, EncodesEveryStringToTheSameIds) {
  ASSERT_EQ(golden_["cases"].size(), 234u);
  EXPECT_EQ(tokenizer_->vocab_size(), golden_["vocab_size"].get<int>());
  ExpectGoldenIds(*tokenizer_, golden_);
}

TEST_P(TokenizerGolden, DecodesEveryEncodingToTheSameText) {
  for (const json& c : golden_["cases"]) {
    const Ids ids = c["ids"];
    const json& skipped =
        c.contains("decoded_skip_special") ? c["decoded_skip_special"] : c["decoded"];
    EXPECT_EQ(tokenizer_->Decode(ids, false), c["decoded"].get<std::string>()) << c["text"];
    EXPECT_EQ(tokenizer_->Decode(ids, true), skipped.get<std::string>()) << c["text"];
  }
}

TEST_P(TokenizerGolden, DecodesArbitraryIdsToTheSameText) {
  ASSERT_GT(golden_["decode_only"].size(), 100u);
  for (const json& c : golden_["decode_only"]) {
    const Ids ids = c["ids"];
    EXPECT_EQ(tokenizer_->Decode(ids, false), c["decoded"].get<std::string>()) << c["ids"];
    EXPECT_EQ(tokenizer_->Decode(ids, true), c["decoded_skip_special"].get<std::string>())
        << c["ids"];
  }
}

TEST_P(TokenizerGolden, StreamsTheSameSteps) {
  ASSERT_EQ(golden_["stream"].size(), 7u);
  for (const json& c : golden_["stream"]) {
    IncrementalDetokenizer detokenizer(tokenizer_.get(), /*skip_special=*/false);
    const Ids ids = c["ids"];
    ASSERT_EQ(ids.size(), c["steps"].size());
    for (size_t i = 0; i < ids.size(); ++i) {
      const json& step = c["steps"][i];
      EXPECT_EQ(detokenizer.Push(ids[i]), step.is_null() ? "" : step.get<std::string>())
          << c["text"] << " step " << i;
    }
    EXPECT_EQ(detokenizer.Finish(), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Dialects, TokenizerGolden, testing::ValuesIn(kDialects),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

struct GgufCase {
  const char* dialect;
  const char* pre;
  bool add_bos;
};

class GgufTokenizerGolden : public testing::TestWithParam<GgufCase> {};

TEST_P(GgufTokenizerGolden, SameIdsAndTextsAsTheSameModelsTokenizerJson) {
  GgufVocab vocab = AsGguf(GetParam().dialect, GetParam().pre);
  vocab.add_bos = GetParam().add_bos;
  vocab.bos_id = 0;
  const auto tokenizer = Tokenizer::FromGgufVocab(vocab);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const json golden = GoldenTokenizerJson(GetParam().dialect, "golden.json");
  ExpectGoldenIds(**tokenizer, golden);
  for (const json& c : golden["decode_only"]) {
    const Ids ids = c["ids"];
    EXPECT_EQ((*tokenizer)->Decode(ids, false), c["decoded"].get<std::string>()) << c["ids"];
    EXPECT_EQ((*tokenizer)->Decode(ids, true), c["decoded_skip_special"].get<std::string>())
        << c["ids"];
  }
}

INSTANTIATE_TEST_SUITE_P(
    Dialects, GgufTokenizerGolden,
    testing::Values(GgufCase{"gpt2-digits", "smollm", false}, GgufCase{"llama3", "llama-bpe", true},
                    GgufCase{"tiny-512", "llama-bpe", false}, GgufCase{"qwen2", "qwen2", false},
                    GgufCase{"qwen35", "qwen35", false}, GgufCase{"o200k", "gpt-4o", false},
                    GgufCase{"deepseek", "deepseek-v3", false}),
    [](const auto& info) {
      std::string name = info.param.dialect;
      std::erase(name, '-');
      return name;
    });

}  // namespace
}  // namespace bitshard
