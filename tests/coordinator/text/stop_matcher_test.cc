#include "coordinator/text/stop_matcher.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace bitshard {
namespace {

TEST(StopMatcher, TextThatCannotBeAStopPassesAtOnce) {
  StopMatcher matcher({"STOP"}, /*include_stop=*/false);
  const auto result = matcher.Push("hello");
  EXPECT_EQ(result.emit, "hello");
  EXPECT_EQ(result.matched, std::nullopt);
  EXPECT_EQ(matcher.held_bytes(), 0u);
}

TEST(StopMatcher, ABeginningIsHeldUntilItIsDecided) {
  StopMatcher matcher({"STOP"}, false);
  EXPECT_EQ(matcher.Push("a ST").emit, "a ");
  EXPECT_EQ(matcher.held_bytes(), 2u);
  EXPECT_EQ(matcher.Push("AR").emit, "STAR");
  EXPECT_EQ(matcher.Push(" STO").emit, " ");
  EXPECT_EQ(matcher.Finish(), "STO");
}

TEST(StopMatcher, NothingOfTheStopOrAfterItIsShown) {
  StopMatcher matcher({"xx", "STOP"}, false);
  EXPECT_EQ(matcher.Push("go ST").emit, "go ");
  const auto result = matcher.Push("OP and more");
  EXPECT_EQ(result.emit, "");
  EXPECT_EQ(result.matched, 1);
  EXPECT_EQ(matcher.Push("again").emit, "");
  EXPECT_EQ(matcher.Push("again").matched, 1);
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, TheStopItselfIsShownWhenAsked) {
  StopMatcher matcher({"\n\n"}, /*include_stop=*/true);
  EXPECT_EQ(matcher.Push("a\n").emit, "a");
  const auto result = matcher.Push("\nb");
  EXPECT_EQ(result.emit, "\n\n");
  EXPECT_EQ(result.matched, 0);
}

TEST(StopMatcher, TheStopThatEndsFirstWinsAndOfThoseTheLongest) {
  StopMatcher first({"abcd", "bc"}, false);
  const auto a = first.Push("xabcd");
  EXPECT_EQ(a.matched, 1);
  EXPECT_EQ(a.emit, "xa");
  StopMatcher longest({"c", "abc"}, false);
  const auto b = longest.Push("xabc");
  EXPECT_EQ(b.matched, 1);
  EXPECT_EQ(b.emit, "x");
}

TEST(StopMatcher, EmptyStopsNeverMatchAndEqualOnesGiveTheFirst) {
  StopMatcher matcher({"", "b", "b"}, false);
  EXPECT_EQ(matcher.Push("a").emit, "a");
  EXPECT_EQ(matcher.Push("b").matched, 1);
  StopMatcher none({}, false);
  EXPECT_EQ(none.Push("anything").emit, "anything");
  EXPECT_EQ(none.Finish(), "");
}

// By definition: the earliest end of any stop, of those the earliest begin.
struct Expected {
  std::string text;
  std::optional<int> matched;
};
Expected ByDefinition(const std::vector<std::string>& stops, const std::string& text,
                      bool include_stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    int best = -1;
    for (size_t i = 0; i < stops.size(); ++i) {
      const std::string& stop = stops[i];
      if (stop.empty() || stop.size() > end || text.compare(end - stop.size(), stop.size(), stop)) {
        continue;
      }
      if (best < 0 || stop.size() > stops[best].size()) best = static_cast<int>(i);
    }
    if (best >= 0) return {text.substr(0, end - (include_stop ? 0 : stops[best].size())), best};
  }
  return {text, std::nullopt};
}

TEST(StopMatcher, RandomTextsInRandomPiecesMatchTheDefinition) {
  for (int seed = 0; seed < 20000; ++seed) {
    std::mt19937 random(seed);
    const auto text_of = [&](int max) {
      std::string text;
      for (int n = static_cast<int>(random() % (max + 1)); n > 0; --n) {
        text += static_cast<char>('a' + random() % (2 + seed % 2));
      }
      return text;
    };
    std::vector<std::string> stops(random() % 5);
    for (std::string& stop : stops) stop = text_of(6);
    const std::string text = text_of(40);
    const bool include_stop = random() % 2 == 0;
    const Expected expected = ByDefinition(stops, text, include_stop);
    size_t longest = 0;
    for (const std::string& stop : stops) longest = std::max(longest, stop.size());

    StopMatcher matcher(stops, include_stop);
    std::string shown;
    std::optional<int> matched;
    for (size_t at = 0; at < text.size();) {
      const size_t piece = 1 + random() % 5;
      const auto result = matcher.Push(text.substr(at, piece));
      shown += result.emit;
      // At no moment is anything shown that the whole text would not show.
      ASSERT_EQ(expected.text.compare(0, shown.size(), shown), 0) << "seed " << seed;
      if (result.matched.has_value()) matched = result.matched;
      ASSERT_TRUE(matcher.held_bytes() == 0 || matcher.held_bytes() < longest) << "seed " << seed;
      at += piece;
    }
    shown += matcher.Finish();
    ASSERT_EQ(shown, expected.text) << "seed " << seed;
    ASSERT_EQ(matched, expected.matched) << "seed " << seed;
  }
}

TEST(StopMatcher, ManyLongStopsDoNotSlowItDown) {
  std::vector<std::string> stops;
  for (int i = 0; i < 500; ++i) stops.push_back(std::string(200, 'a') + std::to_string(i));
  StopMatcher matcher(stops, false);
  std::string shown;
  for (int i = 0; i < 20000; ++i) shown += matcher.Push("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab").emit;
  shown += matcher.Finish();
  EXPECT_EQ(shown.size(), 20000u * 32);
}

}  // namespace
}  // namespace bitshard
