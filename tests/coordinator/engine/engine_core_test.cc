// The engine's rules one by one, on a virtual clock.
#include "coordinator/engine/engine_core.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/engine/error_reason.h"
#include "proto/status_details.h"
#include "tests/coordinator/engine/core_harness.h"

namespace bitshard {
namespace {

FakeExecutor::Options Group(uint32_t blocks, uint32_t slots = 8, uint32_t step_tokens = 256) {
  FakeExecutor::Options options;
  options.group.cache_blocks = blocks;
  options.group.max_slots = slots;
  options.group.max_step_tokens = step_tokens;
  return options;
}

TEST(EngineCore, RequestGetsItsTokensAndOneEnd) {
  FakeExecutor::Options group = Group(64);
  group.worker.next_token = Reciting("hello ", 3);
  CoreHarness engine({}, group);
  engine.MakeReady();
  const auto sink = engine.Send(Request("abc", 8));
  engine.StepUntilIdle();
  const RequestEnd end = sink->AwaitEnd();
  EXPECT_TRUE(end.status.ok()) << end.status;
  EXPECT_EQ(end.finish_reason, FinishReason::kLength);
  EXPECT_EQ(end.prompt_tokens, 3u);
  EXPECT_EQ(end.completion_tokens, 8u);
  EXPECT_EQ(sink->text(), "hello he");
  EXPECT_EQ(engine.Stats().blocks_free + engine.Stats().blocks_cached, 64u);
  EXPECT_EQ(engine.metrics().gaps, 7u);
}

TEST(EngineCore, StopStringEndsTheRequestAndGivesItsBlocksBack) {
  FakeExecutor::Options group = Group(64);
  group.worker.next_token = Reciting("hello world", 1);
  CoreHarness engine({}, group);
  engine.MakeReady();
  GenerateRequest request = Request("a", 100);
  request.stop = {"o w"};
  const auto sink = engine.Send(request);
  engine.StepUntilIdle();
  const RequestEnd end = sink->AwaitEnd();
  EXPECT_EQ(end.finish_reason, FinishReason::kStop);
  EXPECT_EQ(end.matched_stop, "o w");
  EXPECT_EQ(end.completion_tokens, 7u);
  EXPECT_EQ(sink->text(), "hell");
  EXPECT_EQ(engine.Stats().blocks_free + engine.Stats().blocks_cached, 64u);
}

TEST(EngineCore, LogprobsComeWithEachTokenWhenAskedFor) {
  CoreHarness engine({}, Group(64));
  engine.MakeReady();
  GenerateRequest request = Request("a", 3);
  request.logprobs = true;
  request.top_logprobs = 2;
  const auto sink = engine.Send(request);
  const auto without = engine.Send(Request("b", 3));
  engine.StepUntilIdle();
  ASSERT_EQ(sink->logprobs().size(), 3u);
  EXPECT_EQ(sink->logprobs()[0].chosen, -0.5f);
  ASSERT_EQ(sink->logprobs()[0].top.size(), 2u);
  EXPECT_EQ(sink->logprobs()[0].top[0].first, sink->tokens()[0]);
  EXPECT_TRUE(without->logprobs().empty());
}

TEST(EngineCore, DeadlineThatPassesInTheQueueCostsNotOneToken) {
  Engine::Options options;
  options.max_running = 1;
  CoreHarness engine(options, Group(64));
  engine.MakeReady();
  const auto first = engine.Send(Request("abcd", 5));
  GenerateRequest request = Request("efgh", 5);
  request.deadline = engine.now() + absl::Seconds(1);
  const auto second = engine.Send(request);
  engine.Step();
  EXPECT_FALSE(second->ended());
  EXPECT_EQ(engine.core().NextWakeup(), request.deadline);
  engine.Wait(absl::Seconds(1));
  EXPECT_EQ(second->AwaitEnd().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(second->admitted());
  engine.StepUntilIdle();
  EXPECT_EQ(engine.executor().computed_tokens(), 4u + 4u);  // the first request alone
  EXPECT_EQ(engine.metrics().ended[0].reason, EndReason::kDeadline);
  EXPECT_EQ(engine.metrics().ended[0].queue, absl::Seconds(1));
}

TEST(EngineCore, DeadlineWhileRunningFreesTheBlocksAtOnceAndTheStepInFlightIsHarmless) {
  CoreHarness engine({}, Group(64));
  engine.MakeReady();
  GenerateRequest request = Request("abcd", 50);
  request.deadline = engine.now() + absl::Seconds(3);
  const auto sink = engine.Send(request);
  engine.Step();
  engine.Step();
  EXPECT_EQ(engine.Stats().running, 1u);
  engine.Wait(absl::Seconds(3));
  const RequestEnd end = sink->AwaitEnd();
  EXPECT_EQ(end.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(end.completion_tokens, 2u);
  EXPECT_EQ(engine.Stats().blocks_free + engine.Stats().blocks_cached, 64u);
  engine.Step();
  EXPECT_EQ(engine.Stats().stale_outputs, 1u);
}

TEST(EngineCore, CancelEndsCancelledAndFreesTheBlocks) {
  CoreHarness engine({}, Group(64));
  engine.MakeReady();
  GenerateRequest request = Request("abcd", 50);
  request.request_id = "x";
  const auto sink = engine.Send(request);
  engine.Step();
  engine.Cancel("x");
  EXPECT_EQ(sink->AwaitEnd().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine.Stats().blocks_free + engine.Stats().blocks_cached, 64u);
  engine.Cancel("x");                               // too late: nothing happens
  EXPECT_EQ(engine.Send(request)->ended(), false);  // the name is free again
}

TEST(EngineCore, CancelAfterTheDeadlineIsDeadlineExceeded) {
  CoreHarness engine({}, Group(64));
  engine.MakeReady();
  GenerateRequest request = Request("abcd", 50);
  request.deadline = engine.now() + absl::Seconds(3);
  const auto sink = engine.Send(request);
  engine.core().Cancel(1, engine.now() + absl::Seconds(4));
  EXPECT_EQ(sink->AwaitEnd().status.code(), absl::StatusCode::kDeadlineExceeded);
}

// The service's deadline is a little later than the caller's own (deadline.h).
TEST(EngineCore, ACancelAsTheDeadlineComesIsTheCallersClock) {
  CoreHarness engine({}, Group(64));
  engine.MakeReady();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const absl::Duration timeout : {absl::Seconds(100), absl::Seconds(100), absl::Seconds(1),
                                       absl::Seconds(1), absl::InfiniteDuration()}) {
    GenerateRequest request = Request("abcd", 50);
    request.deadline = engine.now() + timeout;
    sinks.push_back(engine.Send(request));
  }
  const absl::Time begun = engine.now();
  engine.core().Cancel(3, begun + absl::Milliseconds(989));
  engine.core().Cancel(4, begun + absl::Milliseconds(991));
  engine.core().Cancel(1, begun + absl::Milliseconds(98'900));
  engine.core().Cancel(2, begun + absl::Milliseconds(99'100));
  engine.core().Cancel(5, begun + absl::Hours(100));
  for (const size_t cancelled : {0, 2, 4})
    EXPECT_EQ(sinks[cancelled]->AwaitEnd().status.code(), absl::StatusCode::kCancelled)
        << cancelled;
  for (const size_t late : {1, 3})
    EXPECT_EQ(sinks[late]->AwaitEnd().status.code(), absl::StatusCode::kDeadlineExceeded) << late;
  int by_deadline = 0;
  for (const RequestSummary& ended : engine.metrics().ended)
    by_deadline += ended.reason == EndReason::kDeadline ? 1 : 0;
  EXPECT_EQ(by_deadline, 2);
}

TEST(EngineCore, LostGroupEndsAllUnavailableWithTheCauseAndAdmissionSaysSo) {
  Engine::Options options;
  options.max_running = 1;
  CoreHarness engine(options, Group(64));
  engine.MakeReady();
  const auto running = engine.Send(Request("abcd", 50));
  const auto waiting = engine.Send(Request("abcd", 50));
  engine.Step();
  engine.executor().LoseGroup(absl::UnavailableError("rank 1 (pid 7): killed by signal 9"));
  for (const auto& sink : {running, waiting}) {
    const absl::Status status = sink->AwaitEnd().status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(status.message().find("rank 1"), absl::string_view::npos) << status;
    EXPECT_EQ(ErrorReason(status), std::string(kReasonWorkerLost));
    EXPECT_TRUE(RetryDelay(status).has_value());
  }
  EXPECT_EQ(engine.Stats().group, EngineStats::GroupState::kLost);
  const absl::Status refused = engine.Submit(Request("a", 1), std::make_shared<RecordingSink>());
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("rank 1"), absl::string_view::npos) << refused;
  EXPECT_EQ(ErrorReason(refused), std::string(kReasonGroupNotReady));

  engine.MakeReady();
  EXPECT_EQ(engine.Stats().epoch, 2u);
  const auto again = engine.Send(Request("abcd", 3));
  engine.StepUntilIdle();
  EXPECT_TRUE(again->AwaitEnd().status.ok());
}

TEST(EngineCore, WithoutFailOnGroupLossStreamsGoOnFromTheNextToken) {
  Engine::Options options;
  options.fail_on_group_loss = false;
  CoreHarness undisturbed(options, Group(64));
  undisturbed.MakeReady();
  const auto expected = undisturbed.Send(Request("abcd", 20));
  undisturbed.StepUntilIdle();

  CoreHarness engine(options, Group(64));
  engine.MakeReady();
  const auto sink = engine.Send(Request("abcd", 20));
  for (int i = 0; i < 7; ++i) engine.Step();
  engine.executor().LoseGroup(absl::UnavailableError("rank 0 is gone"));
  engine.Advance();
  const auto queued = engine.Send(Request("xyz", 4));  // taken while the group is being rebuilt
  EXPECT_FALSE(engine.Step());
  engine.MakeReady();
  engine.StepUntilIdle();
  EXPECT_EQ(sink->tokens(), expected->tokens());
  EXPECT_TRUE(sink->AwaitEnd().status.ok());
  EXPECT_TRUE(queued->AwaitEnd().status.ok());
}

TEST(EngineCore, NewsOfAnOldEpochIsIgnored) {
  CoreHarness engine({}, Group(64));
  engine.MakeReady();
  const auto sink = engine.Send(Request("abcd", 5));
  engine.core().GroupLost(1, 77, absl::UnavailableError("old"), engine.now());
  internal::StepResult stale;
  stale.set_term(1);
  stale.set_epoch(77);
  stale.set_step(1);
  engine.core().StepDone(stale, engine.now());
  stale.set_epoch(1);
  stale.set_step(5);  // this epoch, but not the step that is due
  engine.core().StepDone(stale, engine.now());
  engine.StepUntilIdle();
  EXPECT_TRUE(sink->AwaitEnd().status.ok());
  EXPECT_EQ(engine.Stats().steps, 5u);
}

TEST(EngineCore, NonFiniteLogitsEndThatRequestAloneAndItsBlocksAreSetAside) {
  FakeExecutor::Options group = Group(64);
  group.worker.vocab_size = kByteTokenizerVocab;
  group.worker.non_finite = [](absl::Span<const uint32_t> history) {
    return history[0] == 'b' && history.size() == 20;
  };
  CoreHarness engine({}, group);
  engine.MakeReady();
  const auto good = engine.Send(Request("abcd", 30));
  const auto bad = engine.Send(Request("bcde", 30));
  engine.StepUntilIdle();
  EXPECT_TRUE(good->AwaitEnd().status.ok());
  const RequestEnd end = bad->AwaitEnd();
  EXPECT_EQ(end.status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ErrorReason(end.status), std::string(kReasonNonFinite));
  EXPECT_EQ(end.completion_tokens, 16u);
  EXPECT_EQ(engine.Stats().blocks_quarantined, 2u);
  EXPECT_EQ(engine.Stats().blocks_free + engine.Stats().blocks_cached, 62u);
}

TEST(EngineCore, PrefixThatIsCachedIsNotComputedAgainAndTheUsageSaysSo) {
  CoreHarness engine({}, Group(64));
  engine.MakeReady();
  const std::string prefix(40, 'p');
  const auto first = engine.Send(Request(prefix + "one", 4));
  engine.StepUntilIdle();
  EXPECT_EQ(first->AwaitEnd().cached_tokens, 0u);
  const uint64_t computed = engine.executor().computed_tokens();
  const auto second = engine.Send(Request(prefix + "two", 4));
  engine.StepUntilIdle();
  const RequestEnd end = second->AwaitEnd();
  EXPECT_EQ(end.prompt_tokens, 43u);
  EXPECT_EQ(end.cached_tokens, 32u);
  EXPECT_EQ(engine.metrics().ended.back().cached_tokens, 32u);
  EXPECT_EQ(engine.executor().computed_tokens() - computed, 43u - 32 + 3);
  EXPECT_EQ(engine.Stats().prefix_query_tokens, 2u * 43);
  EXPECT_EQ(engine.Stats().prefix_hit_tokens, 32u);
  EXPECT_EQ(engine.Stats().blocks_used, 0u);
  EXPECT_EQ(engine.Stats().blocks_cached, 2u);
}

TEST(EngineCore, SaltsAndKnownCallersKeepPrefixesApart) {
  Engine::Options options;
  options.model_fingerprint = "model";
  CoreHarness engine(options, Group(64));
  engine.MakeReady();
  const auto cached = [&](const std::string& salt, const std::string& caller = "") {
    GenerateRequest request = Request(std::string(40, 'p'), 4);
    request.cache_salt = salt;
    request.caller = caller;
    const auto sink = engine.Send(std::move(request));
    engine.StepUntilIdle();
    return sink->AwaitEnd().cached_tokens;
  };
  EXPECT_EQ(cached("mine"), 0u);
  EXPECT_EQ(cached("yours"), 0u);
  EXPECT_EQ(cached(""), 0u);
  EXPECT_EQ(cached("mine"), 32u);
  EXPECT_EQ(cached(""), 32u);
  EXPECT_EQ(cached("mine", "alice"), 0u);
  EXPECT_EQ(cached("mine", "bob"), 0u);
  EXPECT_EQ(cached("mine", "alice"), 32u);
}

TEST(EngineCore, PrefixCacheCanBeTurnedOff) {
  Engine::Options options;
  options.prefix_cache = false;
  CoreHarness engine(options, Group(64));
  engine.MakeReady();
  for (int i = 0; i < 2; ++i) {
    const auto sink = engine.Send(Request(std::string(40, 'p'), 4));
    engine.StepUntilIdle();
    EXPECT_EQ(sink->AwaitEnd().cached_tokens, 0u);
  }
  EXPECT_EQ(engine.Stats().blocks_free, 64u);
  EXPECT_EQ(engine.Stats().prefix_query_tokens, 0u);
}

TEST(EngineCore, LostGroupTakesThePrefixCacheWithIt) {
  Engine::Options options;
  options.fail_on_group_loss = false;
  CoreHarness engine(options, Group(64));
  engine.MakeReady();
  (void)engine.Send(Request(std::string(40, 'p'), 4));
  engine.StepUntilIdle();
  engine.executor().LoseGroup(absl::UnavailableError("gone"));
  engine.Advance();
  engine.MakeReady();
  const auto sink = engine.Send(Request(std::string(40, 'p'), 4));
  engine.StepUntilIdle();
  EXPECT_EQ(sink->AwaitEnd().cached_tokens, 0u);
}

TEST(EngineCore, MissingOutputEndsTheRequestInternal) {
  CoreHarness engine({}, Group(64));
  engine.executor().set_tamper([](internal::StepResult* result) { result->clear_outputs(); });
  engine.MakeReady();
  const auto sink = engine.Send(Request("abcd", 30));
  engine.Step();
  EXPECT_EQ(sink->AwaitEnd().status.code(), absl::StatusCode::kInternal);
}

TEST(EngineCore, BlocksOfAStepThatBroughtNothingAreSetAsideAndServeNobody) {
  CoreHarness engine({}, Group(64));
  bool lost = true;
  engine.executor().set_tamper([&lost](internal::StepResult* result) {
    if (lost) result->clear_outputs();
  });
  engine.MakeReady();
  const auto bad = engine.Send(Request(std::string(40, 'p'), 30));
  engine.Step();
  EXPECT_EQ(bad->AwaitEnd().status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(engine.Stats().blocks_quarantined, 3u) << "nobody knows what was written there";
  lost = false;
  const auto good = engine.Send(Request(std::string(40, 'p'), 4));
  engine.StepUntilIdle();
  EXPECT_TRUE(good->AwaitEnd().status.ok()) << good->AwaitEnd().status;
  EXPECT_EQ(good->AwaitEnd().cached_tokens, 0u);
  EXPECT_EQ(engine.Stats().blocks_free + engine.Stats().blocks_cached, 61u);
}

TEST(EngineCore, TokenOutOfRangeEndsTheRequestInternal) {
  CoreHarness engine({}, Group(64));
  engine.executor().set_tamper(
      [](internal::StepResult* result) { result->mutable_outputs(0)->set_token(0xFFFFFFFFu); });
  engine.MakeReady();
  const auto sink = engine.Send(Request("abcd", 30));
  engine.Step();
  EXPECT_EQ(sink->AwaitEnd().status.code(), absl::StatusCode::kInternal);
}

TEST(EngineCore, RequestThatOnlyQuarantineMadeImpossibleEndsUnavailable) {
  FakeExecutor::Options group = Group(/*blocks=*/4);
  group.worker.vocab_size = kByteTokenizerVocab;
  group.worker.non_finite = [](absl::Span<const uint32_t> history) { return history[0] == 'b'; };
  Engine::Options options;
  options.max_running = 1;
  CoreHarness engine(options, group);
  engine.MakeReady();
  engine.Send(Request("b", 10));
  const auto sink = engine.Send(Request("abcd", 60));
  engine.StepUntilIdle();
  const absl::Status status = sink->AwaitEnd().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), std::string(kReasonKvPoolTooSmall));
}

TEST(EngineCore, PhasesFollowEachOtherWithoutAGap) {
  Engine::Options options;
  options.max_running = 1;
  options.token_budget = 4;
  CoreHarness engine(options, Group(64));
  engine.MakeReady();
  engine.Send(Request("a", 2));
  const auto sink = engine.Send(Request("abcdefgh", 3));
  engine.Wait(absl::Seconds(2));
  engine.Step();
  engine.Step();  // the first request is over, the second planned
  engine.Wait(absl::Seconds(3));
  engine.Step();
  engine.Step();
  engine.Wait(absl::Seconds(5));
  engine.StepUntilIdle();
  const RequestTimings timings = sink->AwaitEnd().timings;
  EXPECT_EQ(timings.queue, absl::Seconds(2));
  EXPECT_EQ(timings.prefill, absl::Seconds(3));
  EXPECT_EQ(timings.decode, absl::Seconds(5));
}

TEST(EngineCore, IdleEngineSendsAnEmptyPlanEachInterval) {
  CoreHarness engine({}, Group(64));
  engine.MakeReady();
  EXPECT_EQ(engine.executor().plans_waiting(), 0u);
  EXPECT_EQ(engine.core().NextWakeup(), engine.now() + absl::Seconds(1));
  engine.Wait(absl::Seconds(1));
  EXPECT_EQ(engine.executor().plans_waiting(), 1u);
  engine.Wait(absl::Seconds(10));
  EXPECT_EQ(engine.executor().plans_waiting(), 1u);
  EXPECT_TRUE(engine.Step());
  EXPECT_EQ(engine.metrics().steps[0].kind, StepKind::kIdle);
  const auto sink = engine.Send(Request("ab", 2));
  engine.StepUntilIdle();
  EXPECT_TRUE(sink->AwaitEnd().status.ok());
}

TEST(EngineCore, LastProgressStandsStillWhileAPlanIsOut) {
  CoreHarness engine({}, Group(64));
  engine.MakeReady();
  engine.Wait(absl::Seconds(30));  // an idle plan is out from here on
  EXPECT_EQ(engine.Stats().last_progress, engine.now());
  engine.Step();
  engine.Send(Request("ab", 5));
  const absl::Time sent = engine.now();
  engine.Wait(absl::Seconds(4));
  EXPECT_EQ(engine.Stats().last_progress, sent);
  engine.Step();
  EXPECT_EQ(engine.Stats().last_progress, engine.now());
}

TEST(EngineCore, GroupWithoutACacheIsRefused) {
  CoreHarness engine({}, Group(/*blocks=*/0));
  engine.MakeReady();
  const absl::Status refused = engine.Submit(Request("a", 1), std::make_shared<RecordingSink>());
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("KV blocks"), absl::string_view::npos) << refused;
}

TEST(EngineCore, StepKindsTellPrefillDecodeAndMixed) {
  CoreHarness engine({.async_depth = 1}, Group(64));
  engine.MakeReady();
  engine.Send(Request("abcd", 4));
  engine.Step();
  engine.Send(Request("efgh", 4));
  engine.Step();
  engine.Step();
  const std::vector<StepSummary>& steps = engine.metrics().steps;
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].kind, StepKind::kPrefill);
  EXPECT_EQ(steps[0].tokens, 4u);
  EXPECT_EQ(steps[1].kind, StepKind::kDecode);
  EXPECT_EQ(steps[2].kind, StepKind::kMixed);
  EXPECT_EQ(steps[2].tokens, 5u);
}

}  // namespace
}  // namespace bitshard
