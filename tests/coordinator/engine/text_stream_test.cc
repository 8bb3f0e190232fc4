#include "coordinator/engine/text_stream.h"

#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/byte_tokenizer.h"

namespace bitshard {
namespace {

class TextStreamTest : public testing::Test {
 protected:
  struct Outcome {
    std::string shown;  // deltas and tail
    std::string tail;
    size_t tokens = 0;
    std::optional<TextStream::End> end;
  };

  // Pushes `bytes` one token each; the last one is the last that max_tokens allows.
  Outcome Run(const GenerateRequest& request, const std::vector<int32_t>& tokens) {
    TextStream stream(tokenizer_.get(), request);
    Outcome outcome;
    for (size_t i = 0; i < tokens.size() && !outcome.end.has_value(); ++i) {
      TextStream::Piece piece = stream.Push(tokens[i], i + 1 == tokens.size());
      outcome.shown += piece.text;
      outcome.end = piece.end;
      ++outcome.tokens;
    }
    if (outcome.end.has_value()) {
      outcome.tail = outcome.end->tail_text;
      outcome.shown += outcome.tail;
    }
    return outcome;
  }
  static std::vector<int32_t> Bytes(const std::string& text) {
    std::vector<int32_t> tokens;
    for (unsigned char c : text) tokens.push_back(c);
    return tokens;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = MakeByteTokenizer();
};

TEST_F(TextStreamTest, MaxTokensEndsWithLength) {
  const Outcome outcome = Run({}, Bytes("hello"));
  ASSERT_TRUE(outcome.end.has_value());
  EXPECT_EQ(outcome.end->reason, FinishReason::kLength);
  EXPECT_EQ(outcome.shown, "hello");
}

TEST_F(TextStreamTest, NothingEndsItInTheFirstMinTokens) {
  GenerateRequest request;
  request.stop = {"ll"};
  request.stop_token_ids = {'e'};
  request.min_tokens = 4;
  Outcome outcome = Run(request, Bytes("hello jello"));
  ASSERT_TRUE(outcome.end.has_value());
  EXPECT_EQ(outcome.end->matched_token, 'e');
  EXPECT_EQ(outcome.shown, "hello j");
  // A stop string must lie behind them as a whole.
  request.stop_token_ids.clear();
  request.min_tokens = 3;
  outcome = Run(request, Bytes("hello jello"));
  ASSERT_TRUE(outcome.end.has_value());
  EXPECT_EQ(outcome.end->matched_stop, "ll");
  EXPECT_EQ(outcome.shown, "hello je");
  request.min_tokens = 2;
  EXPECT_EQ(Run(request, Bytes("hello jello")).shown, "he");
}

TEST_F(TextStreamTest, StopStringAcrossTokensEndsTheTextBeforeIt) {
  GenerateRequest request;
  request.stop = {"xyz", "lo w"};
  const Outcome outcome = Run(request, Bytes("hello world"));
  ASSERT_TRUE(outcome.end.has_value());
  EXPECT_EQ(outcome.end->reason, FinishReason::kStop);
  EXPECT_EQ(outcome.end->matched_stop, "lo w");
  EXPECT_EQ(outcome.shown, "hel");
  EXPECT_EQ(outcome.tokens, 7u);
}

TEST_F(TextStreamTest, IncludeStopShowsTheStopString) {
  GenerateRequest request;
  request.stop = {"lo w"};
  request.include_stop = true;
  EXPECT_EQ(Run(request, Bytes("hello world")).shown, "hello w");
}

TEST_F(TextStreamTest, TextThatOnlyBeganAStopStringGoesOutAtTheEnd) {
  GenerateRequest request;
  request.stop = {"lo world!"};
  const Outcome outcome = Run(request, Bytes("hello wor"));
  EXPECT_EQ(outcome.end->reason, FinishReason::kLength);
  EXPECT_EQ(outcome.tail, "lo wor");
  EXPECT_EQ(outcome.shown, "hello wor");
}

TEST_F(TextStreamTest, EndTokenOfTheModelEndsAndHeldTextGoesOut) {
  GenerateRequest request;
  request.stop = {"cde"};
  std::vector<int32_t> tokens = Bytes("abcd");
  tokens.push_back(kByteTokenizerEos);
  tokens.push_back('e');
  const Outcome outcome = Run(request, tokens);
  EXPECT_EQ(outcome.end->reason, FinishReason::kStop);
  EXPECT_EQ(outcome.end->matched_token, kByteTokenizerEos);
  EXPECT_EQ(outcome.end->matched_stop, "");
  EXPECT_EQ(outcome.shown, "abcd");
}

TEST_F(TextStreamTest, IgnoreEosGoesOnButTheRequestsOwnStopTokensStillEnd) {
  GenerateRequest request;
  request.ignore_eos = true;
  request.stop_token_ids = {'z', '!'};
  std::vector<int32_t> tokens = Bytes("ab");
  tokens.push_back(kByteTokenizerEos);
  for (int32_t token : Bytes("c!d")) tokens.push_back(token);
  const Outcome outcome = Run(request, tokens);
  EXPECT_EQ(outcome.end->reason, FinishReason::kStop);
  EXPECT_EQ(outcome.end->matched_token, '!');
  EXPECT_EQ(outcome.shown, "abc");
}

TEST_F(TextStreamTest, IncludeStopShowsAStopTokensText) {
  GenerateRequest request;
  request.stop_token_ids = {'!'};
  request.include_stop = true;
  EXPECT_EQ(Run(request, Bytes("ab!c")).shown, "ab!");
}

TEST_F(TextStreamTest, LastTokenThatCompletesAStopStringIsAStop) {
  GenerateRequest request;
  request.stop = {"lo"};
  const Outcome outcome = Run(request, Bytes("hello"));
  EXPECT_EQ(outcome.end->reason, FinishReason::kStop);
  EXPECT_EQ(outcome.end->matched_stop, "lo");
}

TEST_F(TextStreamTest, CharacterCutByTheEndBecomesReplacementCharacter) {
  const Outcome outcome = Run({}, Bytes("a\xE2\x82"));
  EXPECT_EQ(outcome.shown, "a\xEF\xBF\xBD");
  EXPECT_EQ(outcome.tail, "\xEF\xBF\xBD");
}

TEST_F(TextStreamTest, StopStringOfTheReplacementCharacterMatchesAtTheEnd) {
  GenerateRequest request;
  request.stop = {"\xEF\xBF\xBD"};
  const Outcome outcome = Run(request, Bytes("a\xE2\x82"));
  EXPECT_EQ(outcome.end->reason, FinishReason::kStop);
  EXPECT_EQ(outcome.shown, "a");
}

// A few letters and short stops over them, so that matches and near matches are frequent; the truth
// is a plain search.
TEST_F(TextStreamTest, AgreesWithAPlainSearchOnRandomText) {
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    auto word = [&](size_t letters) {
      std::string text;
      while (text.size() < letters) text += static_cast<char>('a' + random() % 3);
      return text;
    };
    GenerateRequest request;
    for (uint32_t i = random() % 3; i > 0; --i) request.stop.push_back(word(1 + random() % 5));
    const std::string text = word(1 + random() % 30);

    size_t best_end = std::string::npos, best_begin = 0;
    for (const std::string& stop : request.stop) {
      const size_t begin = text.find(stop);
      if (begin == std::string::npos) continue;
      const size_t end = begin + stop.size();
      if (end < best_end || (end == best_end && begin < best_begin)) {
        best_end = end;
        best_begin = begin;
      }
    }
    const bool stops = best_end != std::string::npos;
    const Outcome outcome = Run(request, Bytes(text));
    ASSERT_TRUE(outcome.end.has_value());
    ASSERT_EQ(outcome.end->reason, stops ? FinishReason::kStop : FinishReason::kLength) << text;
    ASSERT_EQ(outcome.shown, stops ? text.substr(0, best_begin) : text);
    ASSERT_EQ(outcome.end->matched_stop,
              stops ? text.substr(best_begin, best_end - best_begin) : "");
    ASSERT_EQ(outcome.tokens, stops ? best_end : text.size());
  }
}

}  // namespace
}  // namespace bitshard
