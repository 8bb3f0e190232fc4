// The engine with its thread: what callers on other threads see.
#include "coordinator/engine/engine.h"

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include <gtest/gtest.h>

#include "coordinator/engine/engine_metrics.h"
#include "coordinator/engine/error_reason.h"
#include "coordinator/loop_beat.h"
#include "proto/status_details.h"
#include "tests/support/await.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/fake_executor.h"
#include "tests/support/recording_sink.h"

namespace bitshard {
namespace {

class EngineTest : public testing::Test {
 protected:
  void StartEngine(Engine::Options options = {}, FakeExecutor::Options group = {}) {
    group.worker.vocab_size = kByteTokenizerVocab;
    executor_ = std::make_unique<FakeExecutor>(group);
    engine_ = Engine::Create(options, tokenizer_.get(), executor_.get(), &metrics_);
    engine_->Start();
    if (group.ready_at_start) AwaitReady();
  }
  // The group's events reach the engine through its inbox, after the requests' callers may have
  // come.
  void AwaitReady() {
    AwaitTrue("a group that is ready",
              [this] { return engine_->Stats().group == EngineStats::GroupState::kReady; });
  }
  static GenerateRequest Request(const std::string& id, uint32_t prompt_tokens,
                                 uint32_t max_tokens) {
    GenerateRequest request;
    request.request_id = id;
    request.prompt_tokens.assign(prompt_tokens, 'a');
    request.max_tokens = max_tokens;
    request.ignore_eos = true;
    return request;
  }
  std::shared_ptr<RecordingSink> Send(const GenerateRequest& request) {
    auto sink = std::make_shared<RecordingSink>();
    const absl::StatusOr<RequestHandle> handle = engine_->Submit(request, sink);
    EXPECT_TRUE(handle.ok()) << handle.status();
    return sink;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = MakeByteTokenizer();
  NullEngineMetrics metrics_;
  std::unique_ptr<FakeExecutor> executor_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, RequestRunsToItsEnd) {
  StartEngine();
  const auto sink = Send(Request("a", 20, 10));
  const RequestEnd end = sink->AwaitEnd();
  EXPECT_TRUE(end.status.ok()) << end.status;
  EXPECT_EQ(sink->tokens().size(), 10u);
  const EngineStats stats = engine_->Stats();  // counted before the caller hears of it
  EXPECT_EQ(stats.finished, 1u);
  EXPECT_EQ(stats.running + stats.waiting, 0u);
  EXPECT_EQ(stats.blocks_free + stats.blocks_cached, stats.blocks_total);
}

TEST_F(EngineTest, GroupThatIsStillFormingIsUnavailable) {
  FakeExecutor::Options group;
  group.ready_at_start = false;
  StartEngine({}, group);
  const absl::Status status =
      engine_->Submit(Request("a", 1, 1), std::make_shared<RecordingSink>()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), std::string(kReasonGroupNotReady));
  executor_->MakeReady();
  AwaitReady();
  EXPECT_TRUE(Send(Request("a", 1, 1))->AwaitEnd().status.ok());
}

TEST_F(EngineTest, EngineThatWasNeverStartedRefusesDrainsAndStops) {
  FakeExecutor executor({});
  const auto engine = Engine::Create({}, tokenizer_.get(), &executor, &metrics_);
  EXPECT_EQ(engine->Submit(Request("a", 1, 1), std::make_shared<RecordingSink>()).status().code(),
            absl::StatusCode::kUnavailable);
  engine->Drain(absl::Seconds(1));
  engine->Stop();
}

// Readiness follows it: a long step is no hung one.
TEST_F(EngineTest, AStepThatMovesIsProgress) {
  StartEngine();
  executor_->Hold();
  const auto sink = Send(Request("a", 20, 10));
  executor_->AwaitPlans(1);
  const absl::Time before = engine_->Stats().last_progress;
  EXPECT_EQ(engine_->Stats().last_progress, before);
  executor_->Move();
  EXPECT_GT(engine_->Stats().last_progress, before);
  executor_->Release();
  EXPECT_TRUE(sink->AwaitEnd().status.ok());
}

class StuckSink final : public RecordingSink {
 public:
  void OnDelta(TokenDelta delta) override {
    stuck.Notify();
    go_on.WaitForNotification();
    RecordingSink::OnDelta(std::move(delta));
  }
  absl::Notification stuck, go_on;
};

// Liveness follows it: an engine that waits for a step is alive.
TEST_F(EngineTest, AThreadThatHangsIsSeenAndOneThatWaitsIsNone) {
  StartEngine();
  executor_->Hold();
  const auto held = Send(Request("a", 20, 10));
  executor_->AwaitPlans(1);
  AwaitTrue("a thread that waits", [] { return LoopBeat::Longest().name.empty(); });
  executor_->Release();
  EXPECT_TRUE(held->AwaitEnd().status.ok());

  const auto sink = std::make_shared<StuckSink>();
  ASSERT_TRUE(engine_->Submit(Request("b", 1, 1), sink).ok());
  sink->stuck.WaitForNotification();
  EXPECT_EQ(LoopBeat::Longest().name, "the engine's thread");
  sink->go_on.Notify();
  EXPECT_TRUE(sink->AwaitEnd().status.ok());
}

TEST_F(EngineTest, AbortOfARequestWhoseStepHangsEndsItAtOnce) {
  StartEngine();
  executor_->Hold();
  const auto sink = Send(Request("a", 20, 10));
  executor_->AwaitPlans(1);
  engine_->Abort("", "a");
  EXPECT_EQ(sink->AwaitEnd().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine_->Stats().blocks_used, 0u);
  engine_->Abort("", "a");
  engine_->Abort("nobody", "b");
  executor_->Release();
}

// A caller whose connection is half-open calls again and again, before it knows what became of the
// last call: each call but the last ends CANCELLED, and together they are one answer.
TEST_F(EngineTest, ACallerTakesItsHalfOpenStreamOver) {
  FakeExecutor::Options group;
  group.worker.next_token = FakeWorker::HashedNextToken(256);
  StartEngine({}, group);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([this, caller] {
      GenerateRequest request = Request("same", 20, 200);
      request.caller = std::string(1, static_cast<char>('a' + caller));
      request.seed = static_cast<uint64_t>(caller);
      const auto whole = Send(request);
      EXPECT_TRUE(whole->AwaitEnd().status.ok()) << whole->AwaitEnd().status;
      request.supersede = true;
      std::vector<std::shared_ptr<RecordingSink>> calls;
      for (size_t length = 20; length <= 180; length += 20) {
        auto sink = std::make_shared<RecordingSink>(request.resumed.size());
        const absl::StatusOr<RequestHandle> handle = engine_->Submit(request, sink);
        ASSERT_TRUE(handle.ok()) << handle.status();
        sink->AwaitTokens(20);
        const std::vector<int32_t> came = sink->tokens();
        ASSERT_GE(came.size(), 20u);
        request.resumed.insert(request.resumed.end(), came.begin(), came.begin() + 20);
        calls.push_back(sink);
      }
      auto last = std::make_shared<RecordingSink>(request.resumed.size());
      ASSERT_TRUE(engine_->Submit(request, last).ok());
      EXPECT_TRUE(last->AwaitEnd().status.ok()) << last->AwaitEnd().status;
      for (const int32_t token : last->tokens()) request.resumed.push_back(token);
      EXPECT_EQ(request.resumed, whole->tokens());
      for (const auto& call : calls) {
        const absl::Status status = call->AwaitEnd().status;
        EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kCancelled) << status;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(engine_->Stats().blocks_used, 0u);
}

TEST_F(EngineTest, RequestsThatComeTogetherHaveOneNameUntilTheLastHasEnded) {
  StartEngine();
  executor_->Hold();
  std::vector<Engine::Submission> together;
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const uint32_t tokens : {1u, 2u, 3u}) {
    sinks.push_back(std::make_shared<RecordingSink>());
    together.push_back({Request("a", tokens, 2), sinks.back()});
  }
  const auto handles = engine_->SubmitAll(std::move(together));
  ASSERT_TRUE(handles.ok()) << handles.status();
  ASSERT_EQ(handles->size(), 3u);
  executor_->AwaitPlans(1);
  engine_->Cancel((*handles)[0]);
  EXPECT_EQ(sinks[0]->AwaitEnd().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine_->Submit(Request("a", 1, 1), std::make_shared<RecordingSink>()).status().code(),
            absl::StatusCode::kAlreadyExists);
  engine_->Abort("", "a");
  EXPECT_EQ(sinks[1]->AwaitEnd().status.code(), absl::StatusCode::kCancelled);
  executor_->Release();
  EXPECT_TRUE(sinks[2]->AwaitEnd().status.ok());
  EXPECT_EQ(sinks[2]->tokens().size(), 2u);
  EXPECT_TRUE(Send(Request("a", 1, 1))->AwaitEnd().status.ok());
}

TEST_F(EngineTest, AbortByAnotherCallerDoesNothing) {
  StartEngine();
  executor_->Hold();
  const auto sink = Send(Request("a", 20, 3));
  engine_->Abort("mallory", "a");
  executor_->Release();
  EXPECT_TRUE(sink->AwaitEnd().status.ok());
}

TEST_F(EngineTest, CancelReachesItsOwnRequestAndNoLaterOneOfTheSameName) {
  StartEngine();
  const auto old_sink = std::make_shared<RecordingSink>();
  const auto old_handle = engine_->Submit(Request("a", 20, 1), old_sink);
  ASSERT_TRUE(old_handle.ok()) << old_handle.status();
  EXPECT_TRUE(old_sink->AwaitEnd().status.ok());
  executor_->Hold();
  const auto kept = Send(Request("a", 20, 10));
  const auto left = std::make_shared<RecordingSink>();
  const auto handle = engine_->Submit(Request("b", 20, 10), left);
  ASSERT_TRUE(handle.ok()) << handle.status();
  engine_->Cancel(*old_handle);
  engine_->Cancel(*handle);  // the engine gets to it after the one before
  EXPECT_EQ(left->AwaitEnd().status.code(), absl::StatusCode::kCancelled);
  executor_->Release();
  EXPECT_TRUE(kept->AwaitEnd().status.ok());
}

TEST_F(EngineTest, DeadlineFiresThoughNothingElseHappens) {
  StartEngine();
  executor_->Hold();
  GenerateRequest request = Request("a", 20, 10);
  request.deadline = absl::Now() + absl::Milliseconds(20);
  const auto sink = Send(request);
  EXPECT_EQ(sink->AwaitEnd().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(engine_->Stats().blocks_used, 0u);
  executor_->Release();
}

TEST_F(EngineTest, LastProgressStandsStillWhileAStepHangsAndIsNowWhenIdle) {
  Engine::Options options;
  options.idle_plan_interval = absl::InfiniteDuration();
  StartEngine(options);
  const absl::Time before = absl::Now();
  EXPECT_GE(engine_->Stats().last_progress, before);
  executor_->Hold();
  const auto sink = Send(Request("a", 20, 10));
  executor_->AwaitPlans(1);
  const absl::Time during = engine_->Stats().last_progress;
  EXPECT_LE(during, absl::Now());
  const absl::Time later = absl::Now();
  EXPECT_LE(engine_->Stats().last_progress, later);
  executor_->Release();
  sink->AwaitEnd();
}

TEST_F(EngineTest, LostGroupEndsEveryStreamAndANewOneServesAgain) {
  StartEngine();
  executor_->Hold();
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int i = 0; i < 40; ++i) sinks.push_back(Send(Request(std::to_string(i), 10, 10)));
  executor_->LoseGroup(absl::UnavailableError("rank 1: killed by signal 9"));
  for (const auto& sink : sinks) {
    const absl::Status status = sink->AwaitEnd().status;
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(status.message().find("rank 1"), absl::string_view::npos) << status;
  }
  EXPECT_EQ(engine_->Submit(Request("x", 1, 1), std::make_shared<RecordingSink>()).status().code(),
            absl::StatusCode::kUnavailable);
  executor_->Release();
  executor_->MakeReady();
  AwaitReady();
  EXPECT_TRUE(Send(Request("x", 10, 10))->AwaitEnd().status.ok());
}

TEST_F(EngineTest, DrainLetsLiveRequestsFinishAndTakesNoNewOnes) {
  StartEngine();
  executor_->Hold();
  const auto sink = Send(Request("a", 10, 10));
  std::thread drain([&] { engine_->Drain(absl::InfiniteDuration()); });
  // Until the drain has begun requests are taken; each of them finishes.
  std::vector<std::shared_ptr<RecordingSink>> taken;
  absl::Status status;
  for (int i = 0; status.ok(); ++i) {
    auto next = std::make_shared<RecordingSink>();
    status = engine_->Submit(Request("b" + std::to_string(i), 1, 1), next).status();
    if (status.code() == absl::StatusCode::kResourceExhausted)
      status = absl::OkStatus();
    else if (status.ok())
      taken.push_back(next);
  }
  EXPECT_EQ(ErrorReason(status), std::string(kReasonDraining));
  executor_->Release();
  drain.join();
  EXPECT_TRUE(sink->AwaitEnd().status.ok());
  for (const auto& other : taken) EXPECT_TRUE(other->AwaitEnd().status.ok());
}

TEST_F(EngineTest, DrainEndsWhatDoesNotFinishInTime) {
  StartEngine();
  executor_->Hold();
  const auto sink = Send(Request("a", 10, 10));
  engine_->Drain(absl::Milliseconds(10));
  const absl::Status status = sink->AwaitEnd().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), std::string(kReasonDraining));
}

TEST_F(EngineTest, AShorterDrainEndsALongerOneToo) {
  StartEngine();
  executor_->Hold();
  const auto sink = Send(Request("a", 10, 10));
  std::thread longer([&] { engine_->Drain(absl::Hours(24)); });
  engine_->Drain(absl::Milliseconds(10));
  longer.join();
  EXPECT_EQ(ErrorReason(sink->AwaitEnd().status), std::string(kReasonDraining));
}

TEST_F(EngineTest, StopEndsEverything) {
  StartEngine();
  executor_->Hold();
  const auto sink = Send(Request("a", 10, 10));
  engine_->Stop();
  EXPECT_EQ(sink->AwaitEnd().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine_->Submit(Request("b", 1, 1), std::make_shared<RecordingSink>()).status().code(),
            absl::StatusCode::kUnavailable);
  engine_->Stop();
}

TEST_F(EngineTest, TwoPlansInFlightGiveTheSameTokens) {
  StartEngine();
  const auto expected = Send(Request("a", 33, 40));
  expected->AwaitEnd();
  engine_.reset();
  Engine::Options options;
  options.async_depth = 2;
  StartEngine(options);
  executor_->Hold();
  const auto sink = Send(Request("a", 33, 40));
  executor_->AwaitPlans(2);
  executor_->Release();
  EXPECT_TRUE(sink->AwaitEnd().status.ok());
  EXPECT_EQ(sink->tokens(), expected->tokens());
}

// Callers, cancels, a reader of the stats and a failing group, all at once; made for TSan.
TEST_F(EngineTest, NothingIsLostUnderConcurrentCallersAndLostGroups) {
  Engine::Options options;
  options.max_waiting = 40;
  options.max_running = 6;
  options.async_depth = 2;
  FakeExecutor::Options group;
  group.group.cache_blocks = 16;
  StartEngine(options, group);

  constexpr int kCallers = 4, kRequests = 150;
  std::atomic<int> accepted = 0, refused = 0, callers_left = kCallers;
  std::vector<std::vector<std::shared_ptr<RecordingSink>>> sinks(kCallers);
  std::vector<std::thread> threads;
  for (int caller = 0; caller < kCallers; ++caller) {
    threads.emplace_back([&, caller] {
      std::mt19937 random(static_cast<uint32_t>(caller) + 1);
      const std::string name = "caller " + std::to_string(caller);
      for (int i = 0; i < kRequests; ++i) {
        GenerateRequest request = Request(std::to_string(i), 1 + random() % 40, 1 + random() % 30);
        request.caller = name;
        request.priority = static_cast<int32_t>(random() % 3);
        if (random() % 4 == 0)
          request.deadline = absl::Now() + absl::Microseconds(random() % 20000);
        auto sink = std::make_shared<RecordingSink>();
        const absl::StatusOr<RequestHandle> handle = engine_->Submit(request, sink);
        if (handle.ok()) {
          ++accepted;
          sinks[caller].push_back(sink);
          if (random() % 3 == 0) engine_->Cancel(*handle);
          if (random() % 8 == 0) engine_->Abort(name, request.request_id);
          if (random() % 4 == 0) sink->AwaitTokens(3);
        } else {
          ++refused;
        }
      }
      --callers_left;
    });
  }
  threads.emplace_back([&] {
    while (callers_left > 0) {
      const EngineStats stats = engine_->Stats();
      EXPECT_EQ(stats.received, stats.finished + stats.rejected + stats.waiting + stats.running);
      EXPECT_EQ(stats.blocks_total, stats.blocks_free + stats.blocks_cached + stats.blocks_used +
                                        stats.blocks_quarantined);
      std::this_thread::yield();
    }
  });
  threads.emplace_back([&] {
    for (uint64_t lost = 0; callers_left > 0; ++lost) {
      const uint64_t steps = engine_->Stats().steps;
      while (callers_left > 0 && engine_->Stats().steps < steps + 50) std::this_thread::yield();
      executor_->LoseGroup(absl::UnavailableError("rank 0 is gone"));
      executor_->MakeReady();
    }
  });
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_caller : sinks) {
    for (const auto& sink : of_caller) sink->AwaitEnd();
  }
  const EngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.received, static_cast<uint64_t>(kCallers * kRequests));
  EXPECT_EQ(stats.finished, static_cast<uint64_t>(accepted));
  EXPECT_EQ(stats.rejected, static_cast<uint64_t>(refused));
  EXPECT_EQ(stats.running + stats.waiting, 0u);
  EXPECT_EQ(stats.blocks_used, 0u);
}

}  // namespace
}  // namespace bitshard
