// What the engine says of its own speed, after steps whose cost is known.
#include "coordinator/engine/pace.h"

#include <gtest/gtest.h>

namespace bitshard {
namespace {

constexpr double kStep = 1e-6, kToken = 1e-5, kPosition = 1e-8;  // seconds

// Steps of `prompts` prompts of `length` tokens each.
StepLoad Prefill(uint32_t prompts, uint32_t length) {
  StepLoad load;
  load.prefill_tokens = prompts * length;
  load.context_tokens = prompts * StepLoad::ContextOf(0, length);
  return load;
}

// A budget of many tokens is filled with many prompts, not with one that is as long.
TEST(Pace, APromptsTimeDoesNotGrowWithTheBudget) {
  constexpr uint32_t kPrompt = 100;
  Pace pace(absl::ZeroDuration());
  absl::Time now = absl::UnixEpoch();
  for (uint32_t i = 0; i < 200; ++i) {
    const StepLoad load = Prefill(1 + i % 7, i % 3 == 0 ? 2000 : kPrompt);
    const double seconds =
        kStep + kToken * load.prefill_tokens + kPosition * static_cast<double>(load.context_tokens);
    now += absl::Seconds(seconds);
    pace.StepEnded(load, absl::Seconds(seconds), /*outputs=*/1, now);
    pace.Entered(kPrompt, /*cached=*/0);
  }
  const double truth = kToken + kPosition * (kPrompt + 1) / 2;
  for (const uint32_t budget : {256u, 8192u})
    EXPECT_NEAR(pace.Rates(budget).prefill_token_seconds, truth, 0.1 * truth) << budget;
  pace.Rates(0);  // of a group that offers nothing: no more than no answer
}

}  // namespace
}  // namespace bitshard
