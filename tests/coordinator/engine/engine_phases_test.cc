// In which phase a request is, when blocks or the whole group are taken from it; on a virtual
// clock. That the phases add up to the latency is checked by the harness, in every test.
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/engine/engine_core.h"
#include "tests/coordinator/engine/core_harness.h"

namespace bitshard {
namespace {

FakeExecutor::Options Group(uint32_t blocks) {
  FakeExecutor::Options options;
  options.group.cache_blocks = blocks;
  options.group.max_slots = 8;
  options.group.max_step_tokens = 256;
  return options;
}

TEST(EnginePhases, ALostGroupIsRecomputeUntilTheNextToken) {
  Engine::Options options;
  options.fail_on_group_loss = false;
  CoreHarness engine(options, Group(64));
  engine.MakeReady();
  const auto sink = engine.Send(Request("abcd", 20));
  engine.Wait(absl::Seconds(1));
  for (int i = 0; i < 7; ++i) engine.Step();
  engine.Wait(absl::Seconds(2));
  engine.executor().LoseGroup(absl::UnavailableError("rank 0 is gone"));
  engine.Wait(absl::Seconds(4));
  const auto queued = engine.Send(Request("xyz", 4));
  engine.MakeReady();
  EXPECT_EQ(engine.metrics().losses, (std::vector<LossCause>{LossCause::kWorkerLost}));
  EXPECT_EQ(engine.metrics().rebuilds, (std::vector<LossCause>{LossCause::kWorkerLost}));
  EXPECT_EQ(engine.metrics().resumed, 1u) << "the queued one has no tokens to go on from";
  engine.Wait(absl::Seconds(8));
  engine.StepUntilIdle();
  ASSERT_TRUE(sink->AwaitEnd().status.ok());
  for (const RequestSummary& summary : engine.metrics().ended) {
    const bool resumed = summary.completion_tokens == 20;
    EXPECT_EQ(summary.recompute, resumed ? absl::Seconds(12) : absl::ZeroDuration());
    EXPECT_EQ(summary.e2e, resumed ? absl::Seconds(15) : absl::Seconds(8));
    EXPECT_EQ(summary.prefill, resumed ? absl::Seconds(1) : absl::Seconds(8));
    EXPECT_EQ(summary.decode, resumed ? absl::Seconds(2) : absl::ZeroDuration());
    EXPECT_EQ(summary.after_first_token, resumed ? absl::Seconds(14) : absl::ZeroDuration());
  }
}

TEST(EnginePhases, APreemptedRequestIsInRecomputeUntilItGetsOn) {
  CoreHarness engine({}, Group(/*blocks=*/5));
  engine.MakeReady();
  engine.Send(Request("abcd", 40));  // three blocks at its end, like the second
  engine.Send(Request("efgh", 40));
  while (engine.core().live() > 0) {
    engine.Wait(absl::Seconds(1));
    ASSERT_TRUE(engine.Step());
  }
  ASSERT_EQ(engine.metrics().ended.size(), 2u);
  const RequestSummary &first = engine.metrics().ended[0], &second = engine.metrics().ended[1];
  EXPECT_EQ(first.preemptions, 0u);
  EXPECT_EQ(first.recompute, absl::ZeroDuration());
  EXPECT_GE(second.preemptions, 1u);
  EXPECT_GT(second.recompute, absl::Seconds(1));
  EXPECT_LT(second.recompute, second.after_first_token);
  EXPECT_EQ(second.decode, second.after_first_token - second.recompute);
}

}  // namespace
}  // namespace bitshard
