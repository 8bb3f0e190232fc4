// The fit of step times, on made series.
#include "coordinator/schedule/step_time_model.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

// A made machine: what a step costs, with noise, and now and then a step that takes far longer.
class Machine {
 public:
  explicit Machine(uint32_t seed) : random_(seed) {}

  double speed = 1;
  double noise = 0.05;
  double outliers = 0.03;

  double True(const StepLoad& load) const {
    return speed * (0.004 + 60e-6 * load.prefill_tokens + 250e-6 * load.decode_rows +
                    40e-9 * static_cast<double>(load.context_tokens));
  }
  double Run(const StepLoad& load) {
    double seconds = True(load) * (1 + noise * (2 * Uniform() - 1));
    if (Uniform() < outliers) seconds *= 5 + 25 * Uniform();
    return seconds;
  }
  StepLoad RandomLoad(bool prefill, bool decode) {
    StepLoad load;
    if (prefill) {
      load.prefill_tokens = 1 + Below(256);
      load.context_tokens += StepLoad::ContextOf(Below(2000), load.prefill_tokens);
    }
    if (decode) {
      load.decode_rows = 1 + Below(64);
      load.context_tokens += uint64_t{load.decode_rows} * Below(2000);
    }
    return load;
  }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  double Uniform() { return static_cast<double>(random_()) * 0x1p-32; }

 private:
  std::mt19937 random_;
};

// Mean of |expected / true - 1| over loads of a kind.
double Error(Machine& machine, const StepTimeModel& model, bool prefill, bool decode) {
  double sum = 0;
  constexpr int kLoads = 200;
  for (int i = 0; i < kLoads; ++i) {
    const StepLoad load = machine.RandomLoad(prefill, decode);
    sum += std::abs(model.Expected(load) / machine.True(load) - 1);
  }
  return sum / kLoads;
}

void Mixed(Machine& machine, StepTimeModel& model, int steps) {
  for (int i = 0; i < steps; ++i) {
    const uint32_t kind = machine.Below(3);
    const StepLoad load = machine.RandomLoad(kind != 0, kind != 1);
    model.Observe(load, machine.Run(load));
  }
}

TEST(StepTimeModel, LearnsWhatAStepCostsThroughNoiseAndOutliers) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Machine machine(seed);
    StepTimeModel model;
    Mixed(machine, model, 300);
    EXPECT_LT(Error(machine, model, true, true), 0.08) << "seed " << seed;
    EXPECT_LT(Error(machine, model, false, true), 0.08) << "seed " << seed;
    EXPECT_LT(Error(machine, model, true, false), 0.12) << "seed " << seed;
  }
}

TEST(StepTimeModel, OneStalledStepMovesItLittle) {
  Machine machine(1);
  machine.outliers = 0;
  StepTimeModel model;
  Mixed(machine, model, 300);
  const StepLoad load = {.prefill_tokens = 64, .decode_rows = 16, .context_tokens = 20'000};
  const double before = model.Expected(load);
  model.Observe(load, 100 * machine.True(load));
  EXPECT_NEAR(model.Expected(load), before, 0.1 * before);
}

TEST(StepTimeModel, FollowsAMachineThatBecomesSlower) {
  Machine machine(2);
  StepTimeModel model;
  Mixed(machine, model, 500);
  machine.speed = 3;
  Mixed(machine, model, 200);
  EXPECT_LT(Error(machine, model, true, true), 0.15);
}

TEST(StepTimeModel, LongDecodingDoesNotWashOutWhatPrefillCosts) {
  Machine machine(3);
  StepTimeModel model;
  Mixed(machine, model, 300);
  for (int i = 0; i < 20'000; ++i) {
    StepLoad load;
    load.decode_rows = 8;
    load.context_tokens = 8 * (1000 + static_cast<uint64_t>(i) / 16);
    model.Observe(load, machine.Run(load));
  }
  EXPECT_LT(Error(machine, model, true, true), 0.25);
}

TEST(StepTimeModel, MoreWorkNeverLooksCheaper) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Machine machine(seed);
    machine.noise = 0.5;
    StepTimeModel model;
    for (int i = 0; i < 100; ++i) {
      const StepLoad load = machine.RandomLoad(machine.Below(2) == 0, true);
      model.Observe(load, machine.Run(load));
      const StepLoad less = machine.RandomLoad(true, true);
      StepLoad more = less;
      more.prefill_tokens += machine.Below(100);
      more.decode_rows += machine.Below(10);
      more.context_tokens += machine.Below(10'000);
      ASSERT_GE(model.Expected(more), model.Expected(less)) << "seed " << seed;
    }
  }
}

TEST(StepTimeModel, NonsenseIsLeftOut) {
  StepTimeModel model;
  const StepLoad load = {.prefill_tokens = 10, .decode_rows = 0, .context_tokens = 55};
  for (const double seconds : {0., -1., std::nan(""), HUGE_VAL}) model.Observe(load, seconds);
  model.Observe({}, 1);
  EXPECT_FALSE(model.knows_prefill());
  EXPECT_EQ(model.Expected(load), 0);
}

TEST(StepTimeModel, BeforeItKnowsPrefillItIsCautious) {
  StepTimeModel model;
  const StepLoad decodes = {.prefill_tokens = 0, .decode_rows = 8, .context_tokens = 100};
  EXPECT_EQ(model.PrefillWithin(10, decodes, 0), StepTimeModel::kCautiousChunk);
  StepLoad full = decodes;
  full.prefill_tokens = StepTimeModel::kCautiousChunk;
  EXPECT_EQ(model.PrefillWithin(10, full, 0), 0u);
}

TEST(StepTimeModel, PrefillStaysWithinTheBoundButNeverStops) {
  Machine machine(4);
  machine.outliers = 0;
  StepTimeModel model;
  Mixed(machine, model, 500);
  int within = 0, steps = 0;
  for (int i = 0; i < 500; ++i) {
    const StepLoad decodes = machine.RandomLoad(false, true);
    const uint32_t start = machine.Below(2000);
    const double slo = 0.01 + 0.03 * machine.Uniform();
    const uint32_t tokens = model.PrefillWithin(slo, decodes, start);
    ASSERT_GE(tokens, StepTimeModel::kLeastChunk);
    StepLoad with = decodes;
    with.prefill_tokens = tokens;
    with.context_tokens += StepLoad::ContextOf(start, tokens);
    if (tokens > StepTimeModel::kLeastChunk) {
      ++steps;
      within += machine.True(with) <= slo;
      // And it uses what is allowed: with half as much again it would be beyond.
      StepLoad more = decodes;
      more.prefill_tokens = tokens + tokens / 2 + 20;
      more.context_tokens += StepLoad::ContextOf(start, more.prefill_tokens);
      ASSERT_GT(machine.True(more), slo * 0.9) << tokens;
    }
    // Whoever comes second gets nothing beyond the bound, not even the least chunk.
    with.prefill_tokens += 10'000;
    ASSERT_EQ(model.PrefillWithin(slo, with, 0), 0u);
  }
  ASSERT_GT(steps, 100);
  EXPECT_GT(within, steps * 95 / 100);
}

}  // namespace
}  // namespace bitshard
