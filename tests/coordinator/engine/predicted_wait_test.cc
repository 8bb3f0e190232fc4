// What admission counts as being in front of a request, against the order in which the scheduler
// serves levels; and what it makes of predictions that turned out to be wrong.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/engine/admission.h"
#include "coordinator/engine/error_reason.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

class PredictedWaitTest : public testing::Test {
 protected:
  static Engine::Options Options(absl::Duration max_queue_wait = absl::InfiniteDuration()) {
    Engine::Options options;
    options.context_tokens = 2000;
    options.vocab_size = 500;
    options.max_queue_wait = max_queue_wait;
    return options;
  }
  PredictedWaitTest() {
    stats_.group = EngineStats::GroupState::kReady;
    stats_.max_request_tokens = 2000;
    stats_.places = 4;
    stats_.rates = {.prefill_token_seconds = 0.01, .decode_step_seconds = 0.1, .outputs = 10};
  }

  GenerateRequest Request(bool batch = false, int32_t priority = 0) {
    GenerateRequest request;
    request.request_id = std::to_string(++names_);
    request.prompt_tokens.assign(10, 1);
    request.max_tokens = 5;
    request.batch = batch;
    request.priority = priority;
    return request;
  }
  // So many requests that have started.
  void Run(int count) {
    admission_.SetScheduling(stats_, 0);
    for (int i = 0; i < count; ++i) admission_.Started(*admission_.Admit(Request(), now_));
    stats_.running += static_cast<uint32_t>(count);
    stats_.running_choices = stats_.running;
  }
  // The wait that is predicted for a request, as its refusal tells it; none when it would come in
  // at once.
  absl::Duration WaitOf(bool batch, int32_t priority) {
    admission_.SetScheduling(stats_, 0);
    GenerateRequest request = Request(batch, priority);
    const absl::Duration left = absl::Nanoseconds(1);
    request.deadline = now_ + left;
    const absl::StatusOr<SequenceId> id = admission_.Admit(request, now_);
    if (id.ok()) {
      admission_.End(*id, EndReason::kStop, absl::StatusCode::kOk);
      return absl::ZeroDuration();
    }
    EXPECT_EQ(ErrorReason(id.status()), kReasonQueueWait) << id.status();
    return absl::Floor(*RetryDelay(id.status()) + left + absl::Microseconds(500),
                       absl::Milliseconds(1));
  }

  const absl::Time now_ = absl::FromUnixSeconds(1000);
  int names_ = 0;
  EngineStats stats_;
  Admission admission_{Options()};
};

TEST_F(PredictedWaitTest, BatchRequestsThatWerePushedOutAreInFrontOfBatchRequestsOnly) {
  stats_.level_loads = {{.level = {.batch = true, .priority = 0},
                         .running = 0,
                         .uncomputed_tokens = 0,
                         .waiting_again = 3,
                         .again_tokens = 300}};
  EXPECT_EQ(WaitOf(/*batch=*/false, 0), absl::ZeroDuration());
  EXPECT_EQ(WaitOf(/*batch=*/false, 100), absl::ZeroDuration());
  EXPECT_EQ(WaitOf(/*batch=*/true, -1), absl::ZeroDuration());
  EXPECT_EQ(WaitOf(/*batch=*/true, 0), absl::Seconds(3));
  EXPECT_EQ(WaitOf(/*batch=*/true, 1), absl::Seconds(3));
}

TEST_F(PredictedWaitTest, WhatLaterLevelsHaveToComputeWaitsForEarlierOnes) {
  Run(2);
  stats_.uncomputed_tokens = 120;
  stats_.level_loads = {{.level = {.batch = false, .priority = 0},
                         .running = 1,
                         .uncomputed_tokens = 20,
                         .waiting_again = 0,
                         .again_tokens = 0},
                        {.level = {.batch = false, .priority = 5},
                         .running = 1,
                         .uncomputed_tokens = 100,
                         .waiting_again = 1,
                         .again_tokens = 50}};
  EXPECT_EQ(WaitOf(/*batch=*/false, -1), absl::ZeroDuration());
  EXPECT_EQ(WaitOf(/*batch=*/false, 0), absl::Milliseconds(200));
  EXPECT_EQ(WaitOf(/*batch=*/false, 4), absl::Milliseconds(200));
  EXPECT_EQ(WaitOf(/*batch=*/false, 5), absl::Milliseconds(1700));
  EXPECT_EQ(WaitOf(/*batch=*/true, 0), absl::Milliseconds(1700));
}

TEST_F(PredictedWaitTest, PlacesOfBatchRequestsAreFreeForInteractiveOnes) {
  Run(4);
  stats_.level_loads = {{.level = {.batch = false, .priority = 0}, .running = 1},
                        {.level = {.batch = true, .priority = 0}, .running = 3}};
  EXPECT_EQ(WaitOf(/*batch=*/false, 0), absl::ZeroDuration());
  EXPECT_EQ(WaitOf(/*batch=*/true, 0), absl::Milliseconds(250));  // one of four ends
  stats_.level_loads = {{.level = {.batch = false, .priority = 9}, .running = 4}};
  EXPECT_EQ(WaitOf(/*batch=*/false, 0), absl::Milliseconds(250));  // these keep theirs
}

TEST_F(PredictedWaitTest, ABatchRequestWithoutRoomSaysNothingOfInteractiveOnes) {
  Run(2);
  stats_.no_room = true;
  stats_.next_is_batch = true;
  EXPECT_EQ(WaitOf(/*batch=*/false, 0), absl::ZeroDuration());
  EXPECT_EQ(WaitOf(/*batch=*/true, 0), absl::Milliseconds(500));
  stats_.next_is_batch = false;
  EXPECT_EQ(WaitOf(/*batch=*/false, 0), absl::Milliseconds(500));
}

TEST_F(PredictedWaitTest, TheBoundHoldsForNearlyAllWaitsAndADeadlineForTheMean) {
  Admission admission(Options(/*max_queue_wait=*/absl::Seconds(1)));
  const auto predict = [&](absl::Duration wait) {
    stats_.uncomputed_tokens = static_cast<uint64_t>(wait / absl::Milliseconds(10));
    admission.SetScheduling(stats_, 0);
  };
  const auto comes_in = [&](GenerateRequest request) {
    const absl::StatusOr<SequenceId> id = admission.Admit(request, now_);
    if (id.ok()) admission.End(*id, EndReason::kStop, absl::StatusCode::kOk);
    return id.ok();
  };
  // Requests wait twice as long as predicted.
  const auto wait_twice = [&](bool batch, bool with_loss) {
    for (size_t i = 0; i < WaitError::kLeast; ++i) {
      predict(absl::Milliseconds(500));
      const SequenceId id = *admission.Admit(Request(batch), now_);
      if (with_loss) {
        ++stats_.epoch;
        admission.SetScheduling(stats_, 0);
      }
      admission.Started(id, 0, now_ + absl::Seconds(1));
      admission.End(id, EndReason::kStop, absl::StatusCode::kOk);
    }
    predict(absl::Milliseconds(600));
  };
  wait_twice(/*batch=*/true, /*with_loss=*/false);
  EXPECT_TRUE(comes_in(Request())) << "batch requests may wait for as long as it takes";
  wait_twice(/*batch=*/false, /*with_loss=*/true);
  EXPECT_TRUE(comes_in(Request())) << "they waited for another group";
  wait_twice(/*batch=*/false, /*with_loss=*/false);
  EXPECT_FALSE(comes_in(Request()));
  EXPECT_EQ(admission.Stats().predicted_wait, absl::Milliseconds(600)) << "told is the mean";
  GenerateRequest hurried = Request(/*batch=*/true);
  hurried.deadline = now_ + absl::Milliseconds(700);
  EXPECT_TRUE(comes_in(hurried));
  predict(absl::Milliseconds(490));
  EXPECT_TRUE(comes_in(Request()));
}

TEST_F(PredictedWaitTest, NeitherShortWaitsNorOneStallShutTheDoorForGood) {
  Admission admission(Options(/*max_queue_wait=*/absl::Seconds(1)));
  const auto predict = [&](uint64_t tokens) {  // 10 ms each
    stats_.uncomputed_tokens = tokens;
    admission.SetScheduling(stats_, 0);
  };
  const auto wait = [&](size_t times, uint64_t predicted_tokens, absl::Duration waited) {
    for (size_t i = 0; i < times; ++i) {
      predict(predicted_tokens);
      const absl::StatusOr<SequenceId> id = admission.Admit(Request(), now_);
      ASSERT_TRUE(id.ok()) << id.status();
      admission.Started(*id, 0, now_ + waited);
      admission.End(*id, EndReason::kStop, absl::StatusCode::kOk);
    }
  };
  const auto comes_in = [&](uint64_t predicted_tokens) {
    predict(predicted_tokens);
    const absl::StatusOr<SequenceId> id = admission.Admit(Request(), now_);
    if (id.ok()) admission.End(*id, EndReason::kStop, absl::StatusCode::kOk);
    return id.ok();
  };
  wait(WaitError::kMemory, 1, absl::Milliseconds(90));  // nine times as long, and no matter
  EXPECT_TRUE(comes_in(60));
  wait(WaitError::kLeast, 50, absl::Seconds(20));  // forty times as long
  EXPECT_FALSE(comes_in(60));
  wait(2 * WaitError::kMemory, 10, absl::Milliseconds(100));  // as predicted
  EXPECT_TRUE(comes_in(60));
}

}  // namespace
}  // namespace bitshard
