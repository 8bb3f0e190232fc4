#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "coordinator/text/detokenizer.h"
#include "coordinator/text/gguf_vocab.h"
#include "coordinator/text/tokenizer.h"
#include "coordinator/text/utf8.h"
#include "tests/coordinator/text/golden_tokenizer.h"

namespace bitshard {
namespace {

using Ids = std::vector<int32_t>;

std::string RandomBytes(std::mt19937& random, int max) {
  std::string bytes(random() % (max + 1), '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

std::string RandomText(std::mt19937& random, int max) {
  constexpr const char* kPool[] = {" ",      "\n",         "a",       "the ", "of", "ab",
                                   "1",      "'s",         "-",       "é",    "中", "😀",
                                   "\u0301", "<|im_end|>", "<think>", "<|",   ">",  "\u00a0"};
  std::string text;
  for (int n = static_cast<int>(random() % (max + 1)); n > 0; --n) {
    if (random() % 4 > 0) {
      text += kPool[random() % std::size(kPool)];
      continue;
    }
    const char32_t c = random() % 0x3000;
    AppendUtf8(c, &text);
  }
  return text;
}

class TokenizerProperty : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    tokenizer_ = GoldenTokenizer(GetParam());
    ASSERT_NE(tokenizer_, nullptr);
  }
  Ids RandomIds(std::mt19937& random, int max) const {
    Ids ids(random() % (max + 1));
    // Some beyond the vocabulary, as a model with a padded one may sample.
    for (int32_t& id : ids)
      id = static_cast<int32_t>(random() % (tokenizer_->vocab_size() + 9)) - 2;
    return ids;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerProperty, TextThatNoNormalizerChangesComesBack) {
  const bool nfc = std::string(GetParam()).starts_with("qwen");
  for (int seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const std::string text = RandomText(random, 40);
    for (bool parse_special : {false, true}) {
      const auto ids =
          tokenizer_->Encode(text, {.add_special = false, .parse_special = parse_special});
      ASSERT_TRUE(ids.ok()) << ids.status();
      const std::string back = tokenizer_->Decode(*ids, /*skip_special=*/false);
      if (!nfc) {
        ASSERT_EQ(back, text) << "seed " << seed;
      }
      // Whatever the normalizer did, it does it once.
      const auto again =
          tokenizer_->Encode(back, {.add_special = false, .parse_special = parse_special});
      ASSERT_TRUE(again.ok()) << again.status();
      ASSERT_EQ(tokenizer_->Decode(*again, false), back) << "seed " << seed;
      for (int32_t id : *ids) {
        ASSERT_TRUE(parse_special || !tokenizer_->IsSpecial(id)) << text;
      }
    }
  }
}

TEST_P(TokenizerProperty, BytesThatAreNoTextAreRefused) {
  for (int seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const std::string bytes = RandomBytes(random, 12);
    const auto ids = tokenizer_->Encode(bytes, {});
    if (FirstInvalidUtf8(bytes).has_value()) {
      ASSERT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument) << "seed " << seed;
    } else {
      ASSERT_TRUE(ids.ok()) << ids.status();
    }
  }
}

TEST_P(TokenizerProperty, StreamedTextIsTheWholeText) {
  for (int seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const Ids ids = RandomIds(random, 30);
    for (bool skip_special : {false, true}) {
      IncrementalDetokenizer detokenizer(tokenizer_.get(), skip_special);
      std::string streamed;
      for (int32_t id : ids) {
        const std::string delta = detokenizer.Push(id);
        ASSERT_EQ(FirstInvalidUtf8(delta), std::nullopt) << "seed " << seed;
        streamed += delta;
      }
      streamed += detokenizer.Finish();
      ASSERT_EQ(streamed, tokenizer_->Decode(ids, skip_special)) << "seed " << seed;
    }
  }
}

TEST_P(TokenizerProperty, ManyThreadsShareOneTokenizer) {
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  for (int seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    texts.push_back(RandomText(random, 60));
    expected.push_back(*tokenizer_->Encode(texts.back(), {}));
  }
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 5; ++round) {
        for (size_t i = 0; i < texts.size(); ++i) {
          wrong[t] += *tokenizer_->Encode(texts[i], {}) != expected[i];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

INSTANTIATE_TEST_SUITE_P(Dialects, TokenizerProperty, testing::ValuesIn(kDialects),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// Byte-pair encoding by its definition, for one piece of letters.
Ids BpeByDefinition(const std::vector<std::string>& merges,
                    const std::map<std::string, int32_t>& vocab, const std::string& piece) {
  std::vector<std::string> symbols;
  for (char c : piece) symbols.push_back(std::string(1, c));
  while (true) {
    size_t best_rank = merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = std::find(merges.begin(), merges.end(), symbols[i] + " " + symbols[i + 1]);
      const size_t rank = it - merges.begin();
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == merges.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + best + 1);
  }
  Ids ids;
  for (const std::string& symbol : symbols) ids.push_back(vocab.at(symbol));
  return ids;
}

TEST(BytePairEncoding, RandomMergesGiveWhatTheDefinitionGives) {
  for (int seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    GgufVocab in;
    in.model = "gpt2";
    in.pre = "gpt-2";
    in.tokens = {"a", "b", "c"};
    std::map<std::string, int32_t> vocab = {{"a", 0}, {"b", 1}, {"c", 2}};
    for (int i = 0; i < 25; ++i) {
      const std::string left = in.tokens[random() % in.tokens.size()];
      const std::string right = in.tokens[random() % in.tokens.size()];
      const std::string merge = left + " " + right;
      if (std::find(in.merges.begin(), in.merges.end(), merge) != in.merges.end()) continue;
      in.merges.push_back(merge);
      if (vocab.try_emplace(left + right, static_cast<int32_t>(in.tokens.size())).second) {
        in.tokens.push_back(left + right);
      }
    }
    const auto tokenizer = Tokenizer::FromGgufVocab(in);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    for (int round = 0; round < 20; ++round) {  // short pieces and long ones: two algorithms
      std::string piece;
      for (int n = 1 + static_cast<int>(random() % 80); n > 0; --n) {
        piece += static_cast<char>('a' + random() % 3);
      }
      const auto ids = (*tokenizer)->Encode(piece, {});
      ASSERT_TRUE(ids.ok()) << ids.status();
      ASSERT_EQ(*ids, BpeByDefinition(in.merges, vocab, piece)) << "seed " << seed << " " << piece;
    }
  }
}

TEST(BytePairEncoding, AMillionEqualLettersAreEncodedInGoodTime) {
  const auto tokenizer = GoldenTokenizer("llama3");
  ASSERT_NE(tokenizer, nullptr);
  const std::string text(1'000'000, 'a');
  const auto ids = tokenizer->Encode(text, {.add_special = false});
  ASSERT_TRUE(ids.ok());
  EXPECT_EQ(tokenizer->Decode(*ids, false), text);
}

}  // namespace
}  // namespace bitshard
