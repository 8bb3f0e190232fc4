// Requests that only score the tokens they are given, on a virtual clock.
#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "coordinator/engine/engine_core.h"
#include "coordinator/engine/error_reason.h"
#include "proto/status_details.h"
#include "tests/coordinator/engine/core_harness.h"
#include "tests/coordinator/engine/given_tokens.h"

namespace bitshard {
namespace {

GenerateRequest ScoreRequest(const std::string& text, uint32_t score_from = 0) {
  GenerateRequest request = Request(text, 0);
  request.score_from = score_from;
  request.logprobs = true;
  request.top_logprobs = 2;
  return request;
}

void ExpectScores(const RequestEnd& end, const std::string& text, uint32_t first) {
  ASSERT_TRUE(end.status.ok()) << end.status;
  ASSERT_EQ(end.scores.size(), text.size() - first);
  for (size_t i = 0; i < end.scores.size(); ++i) {
    const uint32_t place = first + static_cast<uint32_t>(i);
    EXPECT_EQ(end.scores[i].chosen,
              FakeWorker::ScoreOf(static_cast<unsigned char>(text[place]), place));
    ASSERT_EQ(end.scores[i].top.size(), 2u);
    EXPECT_EQ(end.scores[i].top[1], (std::pair<int32_t, float>(1, -1.0f)));
  }
}

TEST(EngineCoreScores, GivenTokensAreScoredWithoutGeneratingAny) {
  CoreHarness engine({}, Group(64, 8, /*step_tokens=*/16));
  engine.MakeReady();
  const auto all = engine.Send(ScoreRequest(kText));
  const auto tail = engine.Send(ScoreRequest(kText, 30));
  const auto one = engine.Send(ScoreRequest("x"));
  engine.StepUntilIdle();
  ExpectScores(all->AwaitEnd(), kText, 1);
  ExpectScores(tail->AwaitEnd(), kText, 30);
  EXPECT_TRUE(one->AwaitEnd().status.ok());
  EXPECT_TRUE(one->AwaitEnd().scores.empty());
  EXPECT_EQ(engine.Stats().tokens, 0u);
  EXPECT_EQ(engine.Stats().blocks_free + engine.Stats().blocks_cached, 64u);
  EXPECT_EQ(all->AwaitEnd().completion_tokens, 0u);
}

TEST(EngineCoreScores, APreemptedOrRebuiltRequestIsScoredOnceAndWhole) {
  Engine::Options options;
  options.fail_on_group_loss = false;
  // Blocks for one and a half of them: they must give way to each other.
  CoreHarness engine(options, Group(/*blocks=*/5, 8, /*step_tokens=*/8));
  engine.MakeReady();
  const auto a = engine.Send(ScoreRequest(kText));
  const auto b = engine.Send(ScoreRequest(kText));
  for (int i = 0; i < 3; ++i) engine.Step();
  engine.executor().LoseGroup(absl::UnavailableError("test"));
  engine.MakeReady();
  engine.StepUntilIdle();
  ExpectScores(a->AwaitEnd(), kText, 1);
  ExpectScores(b->AwaitEnd(), kText, 1);
}

TEST(EngineCoreScores, CancelAndDeadlineEndARunningOneAndGiveItsBlocksBack) {
  CoreHarness engine({}, Group(64, 8, /*step_tokens=*/8));
  engine.MakeReady();
  GenerateRequest cancelled = ScoreRequest(kText), late = ScoreRequest(kText);
  cancelled.request_id = "cancelled";
  late.deadline = engine.now() + absl::Seconds(1);
  const auto a = engine.Send(cancelled);
  const auto b = engine.Send(late);
  engine.Step();
  engine.Cancel("cancelled");
  engine.Wait(absl::Seconds(2));
  EXPECT_EQ(a->AwaitEnd().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(b->AwaitEnd().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(b->AwaitEnd().scores.empty());
  engine.Step();
  EXPECT_EQ(engine.Stats().blocks_free + engine.Stats().blocks_cached, 64u);
}

TEST(EngineCoreScores, ADeadlineSaysHowManyTokensWereScored) {
  CoreHarness engine({}, Group(64, 8, /*step_tokens=*/8));
  engine.MakeReady();
  GenerateRequest late = ScoreRequest(kText);
  late.deadline = engine.now() + absl::Seconds(1);
  const auto sink = engine.Send(late);
  engine.Step();
  engine.Wait(absl::Seconds(2));
  EXPECT_EQ(sink->AwaitEnd().status.message(), "the deadline passed after 8 scored tokens");
}

TEST(EngineCoreScores, NonFiniteLogitsEndTheRequestAlone) {
  FakeExecutor::Options group = Group(64, 8, /*step_tokens=*/8);
  group.worker.non_finite = [](absl::Span<const uint32_t> history) {
    return history[0] == 'b' && history.size() == 20;
  };
  CoreHarness engine({}, group);
  engine.MakeReady();
  const auto good = engine.Send(ScoreRequest(kText));
  const auto bad = engine.Send(ScoreRequest("b" + kText));
  engine.StepUntilIdle();
  ExpectScores(good->AwaitEnd(), kText, 1);
  EXPECT_EQ(bad->AwaitEnd().status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ErrorReason(bad->AwaitEnd().status), kReasonNonFinite);
}

TEST(EngineCoreScores, OnlyTheTokensThemselvesMustFitTheContext) {
  Engine::Options options;
  options.context_tokens = static_cast<uint32_t>(kText.size());
  CoreHarness engine(options, Group(64));
  engine.MakeReady();
  const auto fits = engine.Send(ScoreRequest(kText));
  engine.StepUntilIdle();
  ExpectScores(fits->AwaitEnd(), kText, 1);
  EXPECT_EQ(
      ErrorReason(engine.Submit(ScoreRequest(kText + "!"), std::make_shared<RecordingSink>())),
      kReasonPromptTooLong);
  EXPECT_EQ(engine.Submit(ScoreRequest("abc", 4), std::make_shared<RecordingSink>()).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace bitshard
