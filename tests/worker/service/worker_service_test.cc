#include "worker/service/worker_service.h"

#include <atomic>
#include <string>

#include "absl/synchronization/notification.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/await.h"
#include "tests/worker/service/worker_service_fixture.h"

namespace bitshard {
namespace {

// The fake runner's only kernel is a fallback.
TEST_F(WorkerServiceTest, AFallbackIsRefusedWhenTheCoordinatorWantsFastKernels) {
  Start();
  internal::Register registration;
  auto stream = AcceptRegistered(&registration);
  CoordinatorMessage message;
  internal::Assign& assign = *message.mutable_assign();
  assign.set_term(1);
  assign.set_rank(0);
  assign.set_world(2);
  assign.mutable_plan()->set_rank(0);
  assign.mutable_plan()->set_world(2);
  assign.mutable_plan()->set_digest("d1");
  assign.mutable_numerics()->set_require_fast_kernels(true);
  stream->Send(message);
  WorkerMessage answer = stream->Next();
  while (answer.has_progress()) answer = stream->Next();
  ASSERT_TRUE(answer.has_failure()) << answer.ShortDebugString();
  EXPECT_EQ(answer.failure().code(), static_cast<uint32_t>(absl::StatusCode::kUnimplemented));
  for (const char* word : {"--require-kernels=fast", "rank 0", "layers.0.q_proj", "fake"})
    EXPECT_NE(answer.failure().message().find(word), std::string::npos)
        << word << " in " << answer.failure().message();
}

TEST_F(WorkerServiceTest, GoesThroughTheWholeBringUpAndRunsSteps) {
  Start();
  internal::Register registration;
  auto stream = AcceptRegistered(&registration);
  EXPECT_EQ(registration.token(), "secret");
  EXPECT_EQ(registration.term(), 0u);
  EXPECT_EQ(registration.plan_digest(), "");
  Assign(*stream, 1);
  const WorkerMessage progress = stream->Next();
  EXPECT_EQ(progress.progress().phase(), internal::Progress::LOADING)
      << progress.ShortDebugString();
  EXPECT_EQ(progress.progress().total_bytes(), 20u);
  const internal::Loaded loaded = AwaitLoaded(*stream);
  EXPECT_EQ(loaded.weight_bytes(), 9500u);
  EXPECT_EQ(loaded.read_bytes(), 20u);
  EXPECT_EQ(loaded.max_cache_blocks(), 90u);  // (100000 - 9500 - 500) / 1000
  EXPECT_EQ(loaded.kernels_size(), 1);
  BringUp(*stream, 1, 1);
  EXPECT_EQ(log_.Count("start epoch 1 term 1 blocks 64"), 1);
  for (uint64_t step = 1; step <= 3; ++step) {
    Plan(*stream, 1, 1, step, kAnswer);
    const WorkerMessage message = stream->Next();
    EXPECT_EQ(message.step_result().step(), step) << message.ShortDebugString();
  }
  stream->NextHeartbeat([](const internal::Heartbeat& beat) {
    return beat.term() == 1 && beat.epoch() == 1 && beat.step() == 3 && beat.op() == 7 &&
           !beat.busy();
  });
}

TEST_F(WorkerServiceTest, TakesMemoryForTheCacheWhileItHasNothingToDo) {
  log_.pieces_ahead = 5;
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  EXPECT_EQ(log_.Count("take cache ahead"), 0) << "there is no cache yet";
  BringUp(*stream, 1, 1);
  AwaitTrue("a whole cache", [this] { return log_.pieces_ahead == 0; });
  // And looks again after each step, though not for ever.
  log_.pieces_ahead = 1;
  Plan(*stream, 1, 1, /*step=*/1, kAnswer);
  EXPECT_EQ(stream->Next().step_result().step(), 1u);
  AwaitTrue("a whole cache", [this] { return log_.pieces_ahead == 0; });
  EXPECT_LE(log_.Count("take cache ahead"), 5 + 4);
}

TEST_F(WorkerServiceTest, EndEpochFreesAStepThatHangsAndTheNextEpochBegins) {
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  BringUp(*stream, 1, 1);
  Plan(*stream, 1, 1, 1, kHang);
  Plan(*stream, 1, 1, 2, kAnswer);  // must never run
  stream->NextHeartbeat(
      [](const internal::Heartbeat& beat) { return beat.busy() && beat.step() == 1; });
  End(*stream, 1, 1);
  const WorkerMessage message = stream->Next();  // no Failure before it
  ASSERT_TRUE(message.has_quiesced()) << message.ShortDebugString();
  EXPECT_EQ(message.quiesced().epoch(), 1u);
  EXPECT_TRUE(message.quiesced().weights_intact());
  EXPECT_EQ(log_.Count("abort"), 1);
  BringUp(*stream, 1, 2);
  Plan(*stream, 1, 2, 1, kAnswer);
  EXPECT_EQ(stream->Next().step_result().epoch(), 2u);
  EXPECT_EQ(log_.Count("load d1"), 1);
}

TEST_F(WorkerServiceTest, AStepSeesTheNextPlanWhichRunsAfterIt) {
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  BringUp(*stream, 1, 1);
  Plan(*stream, 1, 1, 1, kLookAhead);
  stream->NextHeartbeat(
      [](const internal::Heartbeat& beat) { return beat.busy() && beat.step() == 1; });
  Plan(*stream, 1, 1, 2, kLookAhead);
  Plan(*stream, 1, 1, 3, kAnswer);
  for (uint64_t step = 1; step <= 3; ++step) {
    const WorkerMessage message = stream->Next();
    EXPECT_EQ(message.step_result().step(), step) << message.ShortDebugString();
  }
  EXPECT_EQ(log_.Count("step 1 sees 2"), 1);
  EXPECT_EQ(log_.Count("step 2 sees 3"), 1);
}

// The plan stays whole for the step that looks at it; its turn does not come.
TEST_F(WorkerServiceTest, EndEpochDropsAPlanThatAStepHasSeen) {
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  BringUp(*stream, 1, 1);
  Plan(*stream, 1, 1, 1, kLookAheadAndHang);
  Plan(*stream, 1, 1, 2, kAnswer);  // must never run
  AwaitLog("step 1 sees 2");
  End(*stream, 1, 1);
  const WorkerMessage message = stream->Next();  // no result before it
  ASSERT_TRUE(message.has_quiesced()) << message.ShortDebugString();
  EXPECT_EQ(log_.Count("step 1 has seen 2"), 1);
}

// What a device had not said before the communicator let go of it. Once: the process cannot go on.
TEST_F(WorkerServiceTest, ADeviceThatIsLostWhenAnEpochEndsIsSaidAtOnceInsteadOfQuiesced) {
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  BringUp(*stream, 1, 1);
  log_.device_is_lost = true;
  End(*stream, 1, 1);
  const WorkerMessage message = stream->Next();
  ASSERT_TRUE(message.has_failure()) << message.ShortDebugString();
  EXPECT_TRUE(message.failure().fatal());
  EXPECT_EQ(message.failure().epoch(), 1u);
  EXPECT_EQ(message.failure().code(), static_cast<uint32_t>(absl::StatusCode::kInternal));
  EXPECT_EQ(message.failure().message(), "cuda:0: gone");
  Join(*stream, 1, 2);
  AwaitLog("lost at the end", 2);
  service_->Leave("the device is lost");
  const WorkerMessage last = stream->Next();
  EXPECT_TRUE(last.has_leaving()) << last.ShortDebugString();
  Stop();
  EXPECT_EQ(log_.Count("device lost"), 1);
  EXPECT_EQ(log_.Count("join shm"), 1) << "only that of the first epoch";
}

TEST_F(WorkerServiceTest, EndEpochFreesASelfTestThatHangs) {
  hang_in_self_test_ = true;
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  Join(*stream, 1, 1);
  AwaitLog("self-test");
  End(*stream, 1, 1);
  EXPECT_TRUE(stream->Next().has_quiesced());
}

TEST_F(WorkerServiceTest, EndEpochFreesAJoinThatWaitsForOthers) {
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  Join(*stream, 1, 1, "hang");
  AwaitLog("join hang");
  End(*stream, 1, 1);
  EXPECT_TRUE(stream->Next().has_quiesced());
  BringUp(*stream, 1, 2);
}

TEST_F(WorkerServiceTest, WhatRanksMustKnowOfEachOtherGoesThroughTheCoordinator) {
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  Join(*stream, 1, 1, "here", "gloo");
  const WorkerMessage told = stream->Next();
  ASSERT_TRUE(told.has_rendezvous()) << told.ShortDebugString();
  EXPECT_EQ(told.rendezvous().epoch(), 1u);
  EXPECT_EQ(told.rendezvous().data(), "where I am");
  CoordinatorMessage all;
  all.mutable_rendezvous_of_all()->set_epoch(2);  // not of this join
  all.mutable_rendezvous_of_all()->add_data("wrong");
  stream->Send(all);
  all.Clear();
  all.mutable_rendezvous_of_all()->set_epoch(1);
  all.mutable_rendezvous_of_all()->add_data("a");
  all.mutable_rendezvous_of_all()->add_data("b");
  stream->Send(all);
  EXPECT_EQ(stream->Next().joined().epoch(), 1u);
  EXPECT_EQ(log_.Count("told a, b"), 1);
}

TEST_F(WorkerServiceTest, EndEpochFreesAJoinThatWaitsForWhatTheOthersTell) {
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  Join(*stream, 1, 1, "here", "gloo");
  ASSERT_TRUE(stream->Next().has_rendezvous());
  End(*stream, 1, 1);
  EXPECT_TRUE(stream->Next().has_quiesced());
  BringUp(*stream, 1, 2);
}

TEST_F(WorkerServiceTest, ARendezvousThatDoesNotComeIsToldWithItsEpoch) {
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  Join(*stream, 1, 1, "here", "gloo", /*timeout_ms=*/1000);
  ASSERT_TRUE(stream->Next().has_rendezvous());
  const WorkerMessage failed = stream->Next();
  ASSERT_TRUE(failed.has_failure()) << failed.ShortDebugString();
  EXPECT_EQ(failed.failure().epoch(), 1u);
  EXPECT_THAT(failed.failure().message(), testing::HasSubstr("within 1000 ms"));
}

TEST_F(WorkerServiceTest, SilenceEndsTheEpochKeepsTheWeightsAndDialsAgain) {
  Start(/*silence_limit=*/absl::Seconds(2));
  auto stream = AcceptRegistered();
  Assign(*stream, 5);
  AwaitLoaded(*stream);
  BringUp(*stream, 5, 1);
  Plan(*stream, 5, 1, 1, kHang);
  // From here on the coordinator says nothing.
  internal::Register again;
  auto second = AcceptRegistered(&again);
  EXPECT_TRUE(stream->WaitForEnd());
  EXPECT_EQ(again.term(), 5u);
  EXPECT_EQ(again.plan_digest(), "d1");
  EXPECT_EQ(again.held_rank(), 0u);
  Assign(*second, 6);
  EXPECT_EQ(AwaitLoaded(*second).read_bytes(), 0u);
  EXPECT_EQ(log_.Count("load d1"), 1);
  EXPECT_EQ(log_.Count("abort"), 1);
  EXPECT_EQ(log_.Count("end epoch"), 1);
}

TEST_F(WorkerServiceTest, HeartbeatsKeepAnIdleStream) {
  Start(/*silence_limit=*/absl::Seconds(2));
  auto stream = AcceptRegistered();
  CoordinatorMessage beat;
  beat.mutable_heartbeat();
  // Longer than the silence limit, counted in the worker's own heartbeats of 10 ms.
  for (int i = 0; i < 250; ++i) {
    stream->NextHeartbeat([](const internal::Heartbeat&) { return true; });
    stream->Send(beat);
  }
  Assign(*stream, 1);
  AwaitLoaded(*stream);  // on the same stream
}

TEST_F(WorkerServiceTest, HeartbeatsGoOnWhileMemoryIsMeasured) {
  std::atomic<bool> hold = false;
  absl::Notification measuring, measured;
  measure_memory_ = [&] {
    internal::MemoryReport report;
    if (!hold.exchange(false)) return report;
    measuring.Notify();
    measured.WaitForNotification();
    report.set_resident_bytes(42);
    return report;
  };
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  BringUp(*stream, 1, 1);
  Plan(*stream, 1, 1, 1, kAnswer);
  EXPECT_EQ(stream->Next().step_result().step(), 1u);  // past the step thread's own report
  hold = true;
  AwaitNotified(measuring, "a look at the memory");
  Plan(*stream, 1, 1, 2, kAnswer);
  EXPECT_EQ(stream->Next().step_result().step(), 2u);
  stream->NextHeartbeat([](const internal::Heartbeat& beat) { return beat.step() == 2; });
  measured.Notify();
  stream->NextMemoryReport([](const auto& report) { return report.resident_bytes() == 42; });
  service_->Leave("nobody measures any more");
  Stop();
}

TEST_F(WorkerServiceTest, AcceptsOnlyATermAboveItsOwn) {
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 7);
  AwaitLoaded(*stream);
  for (const uint64_t term : {7u, 3u}) {
    Assign(*stream, term, "d2");
    const WorkerMessage message = stream->Next();
    ASSERT_TRUE(message.has_failure()) << message.ShortDebugString();
    EXPECT_EQ(message.failure().code(),
              static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition));
  }
  EXPECT_EQ(log_.Count("load d2"), 0);
  // A second coordinator takes over: the old stream ends, and only a higher term counts there too.
  stream->Close();
  internal::Register again;
  auto second = AcceptRegistered(&again);
  EXPECT_EQ(again.term(), 7u);
  Assign(*second, 7);
  EXPECT_TRUE(second->Next().has_failure());
  Assign(*second, 8);
  AwaitLoaded(*second);
}

TEST_F(WorkerServiceTest, RefusesCommunicatorsOfOtherTermsAndPastEpochs) {
  Start();
  auto stream = AcceptRegistered();
  Join(*stream, 1, 1);  // before any assignment
  EXPECT_TRUE(stream->Next().has_failure());
  Assign(*stream, 2);
  AwaitLoaded(*stream);
  Join(*stream, 1, 1);
  EXPECT_TRUE(stream->Next().has_failure());
  BringUp(*stream, 2, 4);
  Join(*stream, 2, 4);
  EXPECT_TRUE(stream->Next().has_failure());
  // The running epoch is untouched.
  Plan(*stream, 2, 4, 1, kAnswer);
  EXPECT_TRUE(stream->Next().has_step_result());
}

TEST_F(WorkerServiceTest, FailedLoadIsToldAndAnotherAssignmentWorks) {
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1, "missing");
  const WorkerMessage message = stream->Next();
  ASSERT_TRUE(message.has_failure()) << message.ShortDebugString();
  EXPECT_EQ(message.failure().code(), static_cast<uint32_t>(absl::StatusCode::kNotFound));
  EXPECT_FALSE(message.failure().fatal());
  Assign(*stream, 2);
  AwaitLoaded(*stream);
}

TEST_F(WorkerServiceTest, FailedJoinIsToldWithItsEpoch) {
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  Join(*stream, 1, 3, "nobody");
  const WorkerMessage message = stream->Next();
  EXPECT_EQ(message.failure().epoch(), 3u) << message.ShortDebugString();
  EXPECT_EQ(message.failure().code(), static_cast<uint32_t>(absl::StatusCode::kUnavailable));
}

TEST_F(WorkerServiceTest, FailedStepIsToldOnceAndEndsTheEpoch) {
  Start();
  auto stream = AcceptRegistered();
  Assign(*stream, 1);
  AwaitLoaded(*stream);
  BringUp(*stream, 1, 1);
  Plan(*stream, 1, 1, 1, kFailStep);
  Plan(*stream, 1, 1, 2, kAnswer);
  EXPECT_EQ(stream->Next().failure().epoch(), 1u);
  End(*stream, 1, 1);
  EXPECT_TRUE(stream->Next().has_quiesced());
}

TEST_F(WorkerServiceTest, LeaveIsAnnouncedAndRunReturns) {
  Start();
  auto stream = AcceptRegistered();
  service_->Leave("SIGTERM");
  EXPECT_EQ(stream->Next().leaving().reason(), "SIGTERM");
  Stop();
  EXPECT_TRUE(run_status_.ok()) << run_status_;
}

TEST_F(WorkerServiceTest, ReleaseWithExitEndsRunAndWithoutItDialsAgain) {
  Start();
  auto stream = AcceptRegistered();
  CoordinatorMessage release;
  release.mutable_release()->set_reason("not needed");
  stream->Send(release);
  auto second = AcceptRegistered();
  release.mutable_release()->set_exit(true);
  second->Send(release);
  Stop();
  EXPECT_EQ(run_status_.code(), absl::StatusCode::kPermissionDenied) << run_status_;
}

TEST_F(WorkerServiceTest, AWrongTokenEndsRunBecauseDiallingAgainWouldNotHelp) {
  coordinator_.Want("another");
  Start();
  Stop();
  EXPECT_EQ(run_status_.code(), absl::StatusCode::kPermissionDenied) << run_status_;
}

TEST_F(WorkerServiceTest, GivesUpWhenTheCoordinatorStaysAway) {
  Start(/*silence_limit=*/absl::Milliseconds(20), /*coordinator_timeout=*/absl::Milliseconds(200));
  Stop();
  EXPECT_EQ(run_status_.code(), absl::StatusCode::kUnavailable) << run_status_;
}

}  // namespace
}  // namespace bitshard
