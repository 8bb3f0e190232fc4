#include "coordinator/text/split_patterns.h"

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "unicode/uchar.h"

#include "coordinator/text/regex_splitter.h"
#include "coordinator/text/utf8.h"

namespace bitshard {
namespace {

using Pieces = std::vector<std::string_view>;

Pieces Split(SplitPattern pattern, std::string_view text) {
  Pieces pieces;
  SplitByPattern(pattern, text, &pieces);
  return pieces;
}

Pieces SplitAll(const std::vector<SplitPattern>& patterns, std::string_view text) {
  Pieces now = {text};
  for (SplitPattern pattern : patterns) {
    Pieces next;
    for (std::string_view piece : now) SplitByPattern(pattern, piece, &next);
    now = next;
  }
  return now;
}

constexpr std::string_view kLine = "I'LL pay  1234.5€\n\n  ok\tx ";

TEST(SplitPatterns, EachFamilyCutsTheTestLineInItsOwnWay) {
  EXPECT_EQ(SplitAll({SplitPattern::kDigits, SplitPattern::kGpt2}, kLine),
            (Pieces{"I", "'", "LL", " pay", "  ", "1", "2", "3", "4", ".", "5", "€", "\n\n ", " ok",
                    "\t", "x", " "}));
  EXPECT_EQ(Split(SplitPattern::kGpt2, kLine), (Pieces{"I", "'", "LL", " pay", " ", " 1234", ".",
                                                       "5", "€", "\n\n ", " ok", "\t", "x", " "}));
  EXPECT_EQ(Split(SplitPattern::kLlama3, kLine),
            (Pieces{"I", "'LL", " pay", " ", " ", "123", "4", ".", "5", "€\n\n", " ", " ok", "\tx",
                    " "}));
  const Pieces qwen = {"I", "'LL", " pay", " ",     " ", "1",   "2",   "3",
                       "4", ".",   "5",    "€\n\n", " ", " ok", "\tx", " "};
  EXPECT_EQ(Split(SplitPattern::kQwen2, kLine), qwen);
  EXPECT_EQ(Split(SplitPattern::kQwen35, kLine), qwen);
}

TEST(SplitPatterns, DigitRunsStayTogetherWhenAsked) {
  EXPECT_EQ(Split(SplitPattern::kDigitRuns, "ab12½ c3"), (Pieces{"ab", "12½", " c", "3"}));
}

TEST(SplitPatterns, OnlyTheExactSpellingIsRecognised) {
  for (SplitPattern pattern :
       {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2, SplitPattern::kQwen35}) {
    EXPECT_EQ(RecognizeSplitPattern(RegexOf(pattern)), pattern);
  }
  EXPECT_EQ(RecognizeSplitPattern(R"(\s+)"), std::nullopt);
}

// The characters that the patterns treat differently, and some at random.
std::string RandomText(std::mt19937& random) {
  constexpr std::string_view kPool[] = {
      " ",      " ",      " ",      "\n",     "\r", "\t",         "\u00a0", "\u3000", "\u0085",
      "\u2028", "\u180e", "'",      "'",      "s",  "S",          "\u017f", "t",      "T",
      "re",     "RE",     "ll",     "lL",     "ve", "d",          "M",      "a",      "\u00e9",
      "\u4e2d", "\u0301", "\u200d", "\u0941", "1",  "2",          "\u0663", "\u00bd", "\u2167",
      "!",      ".",      "/",      "\u20ac", "<|", "\U0001f600", "\u0000", "\u01c5", "\u02b0"};
  std::string text;
  const int length = static_cast<int>(random() % 40);
  for (int i = 0; i < length; ++i) {
    if (random() % 10 > 0) {
      text += kPool[random() % std::size(kPool)];
    } else {
      const char32_t c = random() % 0x110000;
      // Not what came after Unicode 14: ICU and PCRE2 need not know the same Unicode.
      UVersionInfo age;
      u_charAge(static_cast<UChar32>(c), age);
      if (age[0] <= 14 && !(c >= 0xD800 && c <= 0xDFFF)) AppendUtf8(c, &text);
    }
  }
  return text;
}

TEST(SplitPatterns, SamePiecesAsTheRegularExpressionOnRandomText) {
  for (SplitPattern pattern :
       {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen2, SplitPattern::kQwen35}) {
    const auto regex = RegexSplitter::Compile(RegexOf(pattern));
    ASSERT_TRUE(regex.ok()) << regex.status();
    for (int seed = 0; seed < 5000; ++seed) {
      std::mt19937 random(seed);
      const std::string text = RandomText(random);
      Pieces expected;
      ASSERT_TRUE(regex->Split(text, true, true, &expected).ok());
      ASSERT_EQ(Split(pattern, text), expected) << "seed " << seed << ", " << RegexOf(pattern);
    }
  }
}

TEST(SplitPatterns, LongRunsCostLinearTime) {
  // A matcher that looked back or ahead over a run for each of its characters would not end here.
  for (const char* unit : {" ", "\n", "a", "'", "1", "!", " \n", "'s"}) {
    std::string text;
    for (int i = 0; i < 1'000'000; ++i) text += unit;
    for (SplitPattern pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3, SplitPattern::kQwen35,
                                 SplitPattern::kDigits}) {
      size_t bytes = 0;
      for (std::string_view piece : Split(pattern, text)) bytes += piece.size();
      EXPECT_EQ(bytes, text.size());
    }
  }
}

TEST(RegexSplitter, EvilPatternsEndWithAnErrorInsteadOfRunningAway) {
  const auto regex = RegexSplitter::Compile("(a+)+$");
  ASSERT_TRUE(regex.ok());
  Pieces pieces;
  const absl::Status status = regex->Split(std::string(60, 'a') + "!", true, true, &pieces);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

TEST(RegexSplitter, APatternThatDoesNotCompileIsNamed) {
  const auto regex = RegexSplitter::Compile("(unclosed");
  EXPECT_EQ(regex.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(regex.status().message().find("(unclosed"), absl::string_view::npos);
}

}  // namespace
}  // namespace bitshard
