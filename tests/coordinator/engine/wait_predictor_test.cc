#include "coordinator/engine/wait_predictor.h"

#include <gtest/gtest.h>

namespace bitshard {
namespace {

constexpr ServiceRates kRates = {
    .prefill_token_seconds = 0.001, .decode_step_seconds = 0.02, .outputs = 50};

QueueAhead Ahead(uint64_t requests, uint64_t tokens, uint32_t running, uint32_t places) {
  return {.requests = requests,
          .prompt_tokens = tokens,
          .running = running,
          .places = places,
          .blocked = false};
}

TEST(PredictWait, NothingInFrontIsNoWait) {
  EXPECT_EQ(PredictWait(kRates, Ahead(0, 0, 0, 8)), absl::ZeroDuration());
  EXPECT_EQ(PredictWait(kRates, Ahead(0, 0, 7, 8)), absl::ZeroDuration());
}

TEST(PredictWait, NothingMeasuredIsNoWait) {
  EXPECT_EQ(PredictWait({}, Ahead(1000, 100'000, 8, 8)), absl::ZeroDuration());
}

TEST(PredictWait, PromptsInFrontAreComputedFirst) {
  EXPECT_EQ(PredictWait(kRates, Ahead(3, 500, 0, 8)), absl::Milliseconds(500));
}

TEST(PredictWait, WithoutAPlaceOneWaitsForEnds) {
  // 8 run, each ends after 50 steps of 20 ms: one end in 1/8 s.
  EXPECT_EQ(PredictWait(kRates, Ahead(0, 0, 8, 8)), absl::Milliseconds(125));
  EXPECT_EQ(PredictWait(kRates, Ahead(15, 0, 8, 8)), absl::Seconds(2));
  // Two places are free: two of the five, and who comes now is the sixth.
  EXPECT_EQ(PredictWait(kRates, Ahead(5, 0, 8, 10)), absl::Milliseconds(500));
}

TEST(PredictWait, WithoutRoomInTheCachePlacesAreWorthNothing) {
  QueueAhead ahead = Ahead(0, 0, 8, 100);
  ahead.blocked = true;
  EXPECT_EQ(PredictWait(kRates, ahead), absl::Milliseconds(125));
}

TEST(PredictWait, WhatThePrefixCacheBroughtLatelyIsTakenOffPromptsThatWait) {
  ServiceRates rates = kRates;
  rates.cached_part = 0.75;
  QueueAhead ahead = Ahead(3, 800, 0, 8);
  EXPECT_EQ(PredictWait(rates, ahead), absl::Milliseconds(200));
  ahead.uncomputed_tokens = 100;  // these are what the cache did not bring
  EXPECT_EQ(PredictWait(rates, ahead), absl::Milliseconds(300));
}

TEST(PredictWait, TheLongerOfTheTwoCounts) {
  EXPECT_EQ(PredictWait(kRates, Ahead(15, 100, 8, 8)), absl::Seconds(2));
  EXPECT_EQ(PredictWait(kRates, Ahead(15, 5000, 8, 8)), absl::Seconds(5));
}

TEST(WaitError, IsNothingUntilSomeWaitsAreKnown) {
  WaitError error;
  for (size_t i = 1; i < WaitError::kLeast; ++i) error.Add(absl::Seconds(1), absl::Seconds(3));
  EXPECT_EQ(error.factor(), 1);
  error.Add(absl::Seconds(1), absl::Seconds(3));
  EXPECT_EQ(error.factor(), 3);
}

TEST(WaitError, NearlyAllWaitsStayWithinThePredictionTimesIt) {
  WaitError error;
  // A few waits are far longer than predicted, the rest 0.5 to 1.5 times as long.
  int beyond = 0;
  for (int i = 0; i < 4000; ++i) {
    const double ratio = i % 1000 == 999 ? 5 : 0.5 + (i * 37 % 100) / 100.;
    if (i >= 2000 && ratio > error.factor()) ++beyond;
    error.Add(absl::Seconds(2), absl::Seconds(2 * ratio));
  }
  EXPECT_NEAR(error.factor(), 1.5, 0.1);
  EXPECT_LE(beyond, 2000 / 100);
}

TEST(WaitError, FollowsAndStaysWithinItsBounds) {
  WaitError error;
  for (size_t i = 0; i < WaitError::kMemory; ++i) error.Add(absl::Seconds(1), absl::Minutes(5));
  EXPECT_EQ(error.factor(), WaitError::kMost);
  for (size_t i = 0; i < WaitError::kMemory; ++i) error.Add(absl::Seconds(4), absl::Seconds(1));
  EXPECT_EQ(error.factor(), 1);  // who waits less than predicted is no reason to take more
}

TEST(RecentRate, IsTheRateFromTheStartAndFollowsItsChanges) {
  RecentRate rate;
  absl::Time now = absl::FromUnixSeconds(1000);
  EXPECT_EQ(rate.At(now), 0);
  const auto run = [&](uint64_t count, int steps) {
    for (int i = 0; i < steps; ++i) {
      rate.Add(count, now);
      now += absl::Milliseconds(10);
    }
  };
  run(5, 200);
  EXPECT_NEAR(rate.At(now), 500, 15);
  run(5, 10'000);
  EXPECT_NEAR(rate.At(now), 500, 15);
  run(1, 5'000);
  EXPECT_NEAR(rate.At(now), 100, 10);
  EXPECT_LT(rate.At(now + absl::Seconds(60)), 1);
  EXPECT_GE(rate.At(now - absl::Hours(1)), 0);  // a clock that was set back
}

TEST(RecentMean, ForgetsOldValues) {
  RecentMean mean(10);
  EXPECT_EQ(mean.value(), 0);
  mean.Add(4);
  EXPECT_EQ(mean.value(), 4);
  mean.Add(8);
  EXPECT_EQ(mean.value(), 6);
  for (int i = 0; i < 200; ++i) mean.Add(1);
  EXPECT_NEAR(mean.value(), 1, 1e-6);
}

}  // namespace
}  // namespace bitshard
