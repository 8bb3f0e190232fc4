// The engine under load, on a virtual clock and with steps that take a time: tenants, classes, the
// bound on steps that hold decodes, predicted waits, deadlines. Overload is in overload_test.cc.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/engine/error_reason.h"
#include "proto/status_details.h"
#include "tests/coordinator/engine/timed_engine.h"

namespace bitshard {
namespace {

std::vector<StepSummary> Mixed(const CountingMetrics& metrics, size_t from) {
  std::vector<StepSummary> steps;
  for (size_t i = from; i < metrics.steps.size(); ++i) {
    if (metrics.steps[i].kind == StepKind::kMixed) steps.push_back(metrics.steps[i]);
  }
  return steps;
}

TEST(ItlSlo, StepsThatHoldDecodesStayWithinItAndPrefillGoesOn) {
  Engine::Options options;
  options.token_budget = 512;
  options.itl_slo = absl::Milliseconds(15);
  options.async_depth = 1;
  TimedEngine engine(options);
  for (int i = 0; i < 8; ++i) engine.Send(TimedEngine::Make(20, 3000));
  // It learns what prefill costs.
  for (int i = 0; i < 10; ++i) {
    engine.Send(TimedEngine::Make(200, 1));
    engine.StepFor(absl::Milliseconds(100));
  }
  const size_t from = engine.harness().metrics().steps.size();
  std::vector<std::shared_ptr<RecordingSink>> prompts;
  for (int i = 0; i < 10; ++i) prompts.push_back(engine.Send(TimedEngine::Make(900, 1)));
  engine.StepFor(absl::Seconds(4));
  for (const auto& prompt : prompts) EXPECT_TRUE(prompt->ended());
  const std::vector<StepSummary> mixed = Mixed(engine.harness().metrics(), from);
  // 4 ms + 8 decodes leave 9 ms: 150 tokens a step.
  ASSERT_GT(mixed.size(), 50u);
  ASSERT_LT(mixed.size(), 120u);
  size_t within = 0;
  for (const StepSummary& step : mixed) {
    within += step.execution <= options.itl_slo;
    EXPECT_LT(step.execution, options.itl_slo * 1.3);
  }
  EXPECT_GE(within, mixed.size() * 95 / 100);
}

TEST(ItlSlo, WithoutDecodesPrefillTakesTheWholeBudget) {
  Engine::Options options;
  options.token_budget = 512;
  options.itl_slo = absl::Milliseconds(15);
  TimedEngine engine(options);
  for (int i = 0; i < 4; ++i) engine.Send(TimedEngine::Make(1024, 1));
  engine.harness().StepUntilIdle();
  EXPECT_EQ(engine.harness().executor().largest_step_tokens(), 512u);
}

TEST(ItlSlo, ABoundThatDecodesAloneExceedDoesNotStopPrefill) {
  Engine::Options options;
  options.itl_slo = absl::Milliseconds(1);
  TimedEngine engine(options);
  engine.Send(TimedEngine::Make(20, 1000));
  for (int i = 0; i < 10; ++i) engine.Send(TimedEngine::Make(20, 1));
  const auto prompt = engine.Send(TimedEngine::Make(320, 1));
  engine.StepFor(absl::Seconds(1));
  EXPECT_TRUE(prompt->ended());
}

TEST(Tenants, OneWithAThousandQueuedRequestsDelaysNobodyMuch) {
  Engine::Options options;
  options.max_running = 8;
  options.max_waiting = 4096;
  TimedEngine engine(options);
  for (int i = 0; i < 1000; ++i) engine.Send(TimedEngine::Make(50, 20, "heavy"));
  engine.StepFor(absl::Seconds(2));
  for (int i = 0; i < 10; ++i) {
    const auto sink = engine.Send(TimedEngine::Make(50, 20, "light"));
    while (!sink->ended()) ASSERT_TRUE(engine.harness().Step());
    // 8 run, each for about 20 steps of 9 ms: the next place is free in some 20 ms, or, when all
    // came in together, in 200.
    EXPECT_LT(sink->AwaitEnd().timings.queue, absl::Milliseconds(300));
  }
  EXPECT_GT(engine.harness().Stats().waiting, 700u);
}

TEST(Batch, LeavesInteractiveRequestsAlone) {
  Engine::Options options;
  options.max_running = 4;
  TimedEngine engine(options);
  std::vector<std::shared_ptr<RecordingSink>> batch;
  for (int i = 0; i < 20; ++i) {
    GenerateRequest request = TimedEngine::Make(100, 30);
    request.batch = true;
    batch.push_back(engine.Send(request));
  }
  engine.StepFor(absl::Milliseconds(300));
  for (int i = 0; i < 5; ++i) {
    const auto sink = engine.Send(TimedEngine::Make(100, 5));
    while (!sink->ended()) ASSERT_TRUE(engine.harness().Step());
    EXPECT_LT(sink->AwaitEnd().timings.queue, absl::Milliseconds(60));  // plans that are out
  }
  engine.harness().StepUntilIdle();
  for (const auto& sink : batch) EXPECT_TRUE(sink->AwaitEnd().status.ok());
}

TEST(PredictedWait, IsNearWhatHappensAndRefusesWhatWouldComeTooLate) {
  Engine::Options options;
  options.max_running = 4;
  TimedEngine engine(options);
  for (int i = 0; i < 80; ++i) engine.Send(TimedEngine::Make(40, 20));
  engine.StepFor(absl::Seconds(1));
  ASSERT_GT(engine.harness().Stats().waiting, 10u);

  const absl::Duration predicted = engine.harness().Stats().predicted_wait;
  EXPECT_GT(predicted, absl::Milliseconds(100));
  GenerateRequest hasty = TimedEngine::Make(40, 20);
  hasty.deadline = engine.now() + predicted / 2;
  const absl::Status refused = engine.TrySend(hasty);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_EQ(ErrorReason(refused), kReasonQueueWait);
  ASSERT_TRUE(RetryDelay(refused).has_value());
  EXPECT_NEAR(absl::ToDoubleSeconds(*RetryDelay(refused)),
              absl::ToDoubleSeconds(std::max(predicted / 2, absl::Milliseconds(100))), 0.1);
  EXPECT_EQ(engine.harness().Stats().ledger.rejected[static_cast<size_t>(RejectReason::kQueueWait)],
            1u);

  GenerateRequest patient = TimedEngine::Make(40, 20);
  patient.deadline = engine.now() + 10 * predicted;
  std::shared_ptr<RecordingSink> sink;
  ASSERT_TRUE(engine.TrySend(patient, &sink).ok());
  // Somebody urgent waits for a place at most.
  GenerateRequest urgent = TimedEngine::Make(40, 20);
  urgent.priority = -1;
  urgent.deadline = engine.now() + predicted / 2;
  EXPECT_TRUE(engine.TrySend(urgent).ok());
  engine.harness().StepUntilIdle();
  const RequestEnd end = sink->AwaitEnd();
  ASSERT_TRUE(end.status.ok()) << end.status;
  EXPECT_GT(end.timings.queue, predicted * 0.6);
  EXPECT_LT(end.timings.queue, predicted * 1.6);
  EXPECT_EQ(engine.harness().Stats().predicted_wait, absl::ZeroDuration());
}

TEST(PredictedWait, CountsWhatStepsTakeOutsideTheWorkers) {
  Engine::Options options;
  options.max_running = 4;
  TimedEngine engine(options);
  engine.set_said_part(4);
  for (int i = 0; i < 80; ++i) engine.Send(TimedEngine::Make(40, 20));
  engine.StepFor(absl::Seconds(1));
  const absl::Duration predicted = engine.harness().Stats().predicted_wait;
  const auto sink = engine.Send(TimedEngine::Make(40, 20));
  engine.harness().StepUntilIdle();
  const absl::Duration waited = sink->AwaitEnd().timings.queue;
  EXPECT_GT(waited, predicted * 0.6);
  EXPECT_LT(waited, predicted * 1.6);
}

TEST(PredictedWait, MaxQueueWaitHoldsForInteractiveRequestsOnly) {
  Engine::Options options;
  options.max_running = 4;
  options.max_queue_wait = absl::Milliseconds(200);
  TimedEngine engine(options);
  for (int i = 0; i < 60; ++i) engine.Send(TimedEngine::Make(40, 20));
  engine.StepFor(absl::Seconds(1));
  ASSERT_GT(engine.harness().Stats().predicted_wait, options.max_queue_wait);
  EXPECT_EQ(ErrorReason(engine.TrySend(TimedEngine::Make(40, 20))), kReasonQueueWait);
  GenerateRequest batch = TimedEngine::Make(40, 20);
  batch.batch = true;
  EXPECT_TRUE(engine.TrySend(batch).ok());
}

TEST(PredictedWait, ATenantWithNothingWaitingIsNotRefusedForAnothersQueue) {
  Engine::Options options;
  options.max_running = 4;
  options.max_queue_wait = absl::Milliseconds(500);
  TimedEngine engine(options);
  for (int i = 0; i < 100; ++i) engine.Send(TimedEngine::Make(40, 20, "heavy"));
  engine.StepFor(absl::Seconds(1));
  EXPECT_EQ(ErrorReason(engine.TrySend(TimedEngine::Make(40, 20, "heavy"))), kReasonQueueWait);
  std::shared_ptr<RecordingSink> sink;
  ASSERT_TRUE(engine.TrySend(TimedEngine::Make(40, 20, "light"), &sink).ok());
  engine.harness().StepUntilIdle();
  EXPECT_LT(sink->AwaitEnd().timings.queue, absl::Milliseconds(500));
}

TEST(Deadlines, AThousandThatExpireInTheQueueCostNotOneToken) {
  Engine::Options options;
  options.max_running = 2;
  TimedEngine engine(options);
  const auto a = engine.Send(TimedEngine::Make(30, 40)), b = engine.Send(TimedEngine::Make(30, 40));
  std::vector<std::shared_ptr<RecordingSink>> late;
  for (int i = 0; i < 1000; ++i) {
    GenerateRequest request = TimedEngine::Make(30, 40);
    request.deadline = engine.now() + absl::Milliseconds(50);
    late.push_back(engine.Send(request));
  }
  engine.harness().StepUntilIdle();
  for (const auto& sink : late) {
    EXPECT_EQ(sink->AwaitEnd().status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_FALSE(sink->admitted());
  }
  EXPECT_TRUE(a->AwaitEnd().status.ok());
  EXPECT_TRUE(b->AwaitEnd().status.ok());
  EXPECT_EQ(engine.harness().executor().computed_tokens(), 2u * (30 + 39));
}

}  // namespace
}  // namespace bitshard
