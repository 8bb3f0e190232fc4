// What counts in a timed phase, and that prompts differ.

#include "coordinator/tools/bench_measure.h"

#include <algorithm>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bitshard {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr auto kPrefill = BenchCase::Kind::kPrefill;

// One token a message, at these times; CPU time runs ten times as fast.
BenchStream Stream(double sent_at_s, const std::vector<double>& times) {
  BenchStream stream{.sent_at_s = sent_at_s, .sent_cpu_s = 10 * sent_at_s, .arrivals = {}};
  for (double at : times) stream.arrivals.push_back({at, 1, 10 * at});
  return stream;
}

TEST(BenchCase, NamesSayWhatIsMeasured) {
  EXPECT_EQ((BenchCase{.kind = kPrefill, .prompt_tokens = 512}).Name(), "prefill 512");
  EXPECT_EQ((BenchCase{.prompt_tokens = 1, .output_tokens = 64}).Name(), "decode 64 at 0");
  EXPECT_EQ((BenchCase{.prompt_tokens = 9, .output_tokens = 4, .sequences = 16}).Name(),
            "16 x decode 4 at 9");
}

TEST(BenchSample, PrefillCountsThePromptUpToTheFirstToken) {
  const auto sample = SampleOf({.kind = kPrefill, .prompt_tokens = 100}, {Stream(1, {1.5})});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(sample->tokens, 100u);
  EXPECT_THAT(sample->wall_s, DoubleEq(0.5));
  EXPECT_THAT(*sample->cpu_s, DoubleEq(5));
  EXPECT_THAT(sample->ttft_s, ElementsAre(DoubleEq(0.5)));
}

TEST(BenchSample, DecodeCountsFromTheFirstTokenToTheLast) {
  const auto sample = SampleOf({.output_tokens = 3}, {Stream(0, {4, 5, 7})});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(sample->tokens, 2u);
  EXPECT_THAT(sample->wall_s, DoubleEq(3));
  EXPECT_THAT(*sample->cpu_s, DoubleEq(30));
  EXPECT_THAT(sample->gaps_s, ElementsAre(DoubleEq(1), DoubleEq(2)));
}

TEST(BenchSample, TokensOfOneMessageShareItsGap) {
  BenchStream stream = Stream(0, {1, 4});
  stream.arrivals[0].tokens = 2;
  stream.arrivals[1].tokens = 3;
  const auto sample = SampleOf({.output_tokens = 5}, {stream});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(sample->tokens, 3u);
  EXPECT_THAT(sample->gaps_s, ElementsAre(DoubleEq(1), DoubleEq(1), DoubleEq(1)));
}

TEST(BenchSample, WithoutACpuClockThereIsNoCpuTime) {
  BenchStream stream = Stream(0, {1, 2});
  stream.arrivals[1].cpu_s.reset();
  const auto sample = SampleOf({.output_tokens = 2}, {stream});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_FALSE(sample->cpu_s.has_value());
}

// The first sequence runs ahead while the second one's prompt is computed (the gap from 2 to 9),
// and ends first.
TEST(BenchSample, OnlyTheTimeInWhichAllSequencesGenerateCounts) {
  const auto sample = SampleOf({.output_tokens = 5, .sequences = 2},
                               {Stream(0, {1, 2, 9, 10, 11}), Stream(0, {9, 10, 11, 12, 13})});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_THAT(sample->wall_s, DoubleEq(2));  // 9 to 11
  EXPECT_EQ(sample->tokens, 4u);
  EXPECT_THAT(sample->gaps_s, SizeIs(4));
  EXPECT_THAT(sample->gaps_s, Each(DoubleEq(1)));
  EXPECT_THAT(sample->ttft_s, ElementsAre(DoubleEq(1), DoubleEq(9)));
}

// A step's tokens arrive one after another: by which moment bounds the phase one may fall out.
TEST(BenchSample, TokensOfAStepThatArriveApartCountAsWholeSteps) {
  for (const double jitter : {-0.01, 0.01}) {
    const auto sample = SampleOf(
        {.output_tokens = 4, .sequences = 2},
        {Stream(0, {1, 9 + jitter, 10 - jitter, 11 + jitter}), Stream(0, {9, 10, 11, 12})});
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_EQ(sample->tokens % 2, 0u) << jitter;
    EXPECT_GE(sample->tokens, 2u) << jitter;
  }
}

// Not all sequences ran in every step: what arrived is what counts.
TEST(BenchSample, ASequenceThatPausesIsNotCountedForTheStepsItMissed) {
  const auto sample = SampleOf({.output_tokens = 9, .sequences = 2},
                               {Stream(0, {1, 2, 15}), Stream(0, {3, 4, 5, 6, 7, 8, 9, 10, 11})});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(sample->tokens, 8u);
}

TEST(BenchSample, NoTimeTogetherIsAnErrorThatSaysWhatToTry) {
  const auto sample =
      SampleOf({.output_tokens = 2, .sequences = 2}, {Stream(0, {1, 2}), Stream(0, {3, 4})});
  EXPECT_EQ(sample.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(sample.status().message()), HasSubstr("--decode"));
}

// The service made the tokens one a second; a reader that was not run meanwhile found them waiting.
TEST(BenchSample, TokensThatCameFasterThanTheyWereMadeAreABurst) {
  const auto burst = [](std::vector<double> times, double decode_s) {
    BenchStream stream = Stream(0, times);
    stream.decode_s = decode_s;
    const auto sample = SampleOf({.output_tokens = 4, .sequences = 2}, {Stream(0, times), stream});
    EXPECT_TRUE(sample.ok()) << sample.status();
    return sample.ok() && sample->burst;
  };
  EXPECT_FALSE(burst({1, 2, 3, 4}, 3));
  EXPECT_FALSE(burst({1.2, 2, 3, 4}, 3)) << "a little late";
  EXPECT_TRUE(burst({3.7, 3.8, 3.9, 4}, 3));
  EXPECT_TRUE(burst({1, 3.98, 3.99, 4}, 3)) << "half of them at once";
  EXPECT_FALSE(burst({1, 1.5, 2, 4}, 3)) << "the service itself was slow once";
  EXPECT_FALSE(burst({3.7, 3.8, 3.9, 4}, 0)) << "a service that does not say";
}

TEST(BenchPrompts, AreInTheVocabularyAllDifferentAndTheSameForASeed) {
  BenchPrompts prompts(50, 7), again(50, 7), other(50, 8);
  std::set<std::vector<uint32_t>> seen;
  for (int i = 0; i < 20; ++i) {
    const std::vector<uint32_t> prompt = prompts.Next(12);
    EXPECT_THAT(prompt, SizeIs(12));
    EXPECT_LT(*std::max_element(prompt.begin(), prompt.end()), 50u);
    EXPECT_EQ(prompt, again.Next(12));
    EXPECT_NE(prompt, other.Next(12));
    EXPECT_TRUE(seen.insert(prompt).second) << "prompt " << i << " occurred before";
  }
}

TEST(BenchPrompts, OfATextAreItsPieces) {
  std::vector<uint32_t> text(100);
  for (uint32_t i = 0; i < 100; ++i) text[i] = i;
  BenchPrompts prompts(text);
  std::set<uint32_t> starts;
  for (int i = 0; i < 10; ++i) {
    const std::vector<uint32_t> prompt = prompts.Next(150);  // longer than the text: it begins anew
    for (size_t j = 1; j < prompt.size(); ++j) EXPECT_EQ(prompt[j], (prompt[j - 1] + 1) % 100);
    starts.insert(prompt[0]);
  }
  EXPECT_GT(starts.size(), 5u);
}

}  // namespace
}  // namespace bitshard
