#include "coordinator/engine/admission.h"

#include <cmath>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/engine/error_reason.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

using ::testing::HasSubstr;

class AdmissionTest : public testing::Test {
 protected:
  AdmissionTest() { SetReady(); }

  void SetReady() {
    EngineStats stats;
    stats.group = EngineStats::GroupState::kReady;
    stats.max_request_tokens = 1000;
    admission_.SetScheduling(stats, 0);
  }
  static Engine::Options Options() {
    Engine::Options options;
    options.max_waiting = 3;
    options.max_waiting_tokens = 100;
    options.context_tokens = 2000;
    options.vocab_size = 500;
    return options;
  }
  GenerateRequest Request(uint32_t prompt = 10, uint32_t max_tokens = 5) {
    GenerateRequest request;
    request.request_id = std::to_string(next_name_++);
    request.prompt_tokens.assign(prompt, 1);
    request.max_tokens = max_tokens;
    return request;
  }
  absl::Status Admit(const GenerateRequest& request) {
    return admission_.Admit(request, now_).status();
  }

  const absl::Time now_ = absl::FromUnixSeconds(1000);
  int next_name_ = 0;
  Admission admission_{Options()};
};

TEST_F(AdmissionTest, BadFieldsAreInvalidArgumentWithTheField) {
  EXPECT_EQ(Admit(Request(0)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Admit(Request(1, 0)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Admit(Request(1990, 11)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Admit(Request(1, 0xFFFFFFFFu)).code(), absl::StatusCode::kInvalidArgument);
  GenerateRequest outside = Request();
  outside.prompt_tokens[3] = 500;
  EXPECT_EQ(Admit(outside).code(), absl::StatusCode::kInvalidArgument);
  GenerateRequest negative = Request();
  negative.prompt_tokens[3] = -1;
  EXPECT_EQ(Admit(negative).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AdmissionTest, SamplingThatWorkersWouldRefuseNeverReachesThem) {
  const float nan = std::nanf("");
  for (float temperature : {-1.0f, nan, HUGE_VALF}) {
    GenerateRequest request = Request();
    request.temperature = temperature;
    EXPECT_EQ(Admit(request).code(), absl::StatusCode::kInvalidArgument) << temperature;
  }
  for (float bad : {-0.1f, 1.1f, nan}) {
    GenerateRequest request = Request();
    request.top_p = bad;
    EXPECT_EQ(Admit(request).code(), absl::StatusCode::kInvalidArgument) << bad;
    request = Request();
    request.min_p = bad;
    EXPECT_EQ(Admit(request).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  GenerateRequest request = Request();
  request.top_logprobs = 21;
  EXPECT_EQ(Admit(request).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AdmissionTest, RequestThatCanNeverFitThePoolIsFailedPrecondition) {
  const absl::Status status = Admit(Request(10, 991));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), std::string(kReasonKvPoolTooSmall));
  EXPECT_TRUE(Admit(Request(10, 990)).ok());
}

TEST_F(AdmissionTest, ExpiredDeadlineIsRefused) {
  GenerateRequest request = Request();
  request.deadline = now_;
  EXPECT_EQ(Admit(request).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(AdmissionTest, LiveIdOfTheSameCallerIsAlreadyExists) {
  GenerateRequest request = Request();
  ASSERT_TRUE(Admit(request).ok());
  EXPECT_EQ(Admit(request).code(), absl::StatusCode::kAlreadyExists);
  request.caller = "somebody else";
  EXPECT_TRUE(Admit(request).ok());
  admission_.End(*admission_.Find("somebody else", request.request_id), EndReason::kStop,
                 absl::StatusCode::kOk);
  EXPECT_TRUE(Admit(request).ok());
}

TEST_F(AdmissionTest, FullQueueIsResourceExhaustedWithRetryInfo) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Admit(Request()).ok());
  const absl::Status status = Admit(Request());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(status), std::string(kReasonQueueFull));
  EXPECT_TRUE(RetryDelay(status).has_value());
}

TEST_F(AdmissionTest, RunningRequestsDoNotFillTheQueue) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Admit(Request()).ok());
  EngineStats stats = admission_.Stats();
  stats.running = stats.running_choices = 2;
  admission_.SetScheduling(stats, 20);
  EXPECT_EQ(admission_.Stats().waiting, 1u);
  EXPECT_EQ(admission_.Stats().waiting_tokens, 10u);
  EXPECT_TRUE(Admit(Request()).ok());
}

TEST_F(AdmissionTest, EachChoiceTakesAPlaceInTheQueueAndThePromptIsThereOnce) {
  GenerateRequest two = Request(40);
  two.choices = 2;
  ASSERT_TRUE(Admit(two).ok());
  EXPECT_EQ(admission_.Stats().waiting, 1u);
  EXPECT_EQ(admission_.Stats().waiting_choices, 2u);
  EXPECT_EQ(admission_.Stats().waiting_tokens, 40u);
  GenerateRequest more = Request();
  more.choices = 2;
  EXPECT_EQ(ErrorReason(Admit(more)), std::string(kReasonQueueFull)) << "there is room for one";
  EXPECT_TRUE(Admit(Request(60)).ok());
  EXPECT_FALSE(Admit(Request()).ok());
  // The first choice runs, the second waits for it; then both run, then the first has ended.
  EngineStats stats = admission_.Stats();
  admission_.Started(1, 0);
  stats.running = stats.running_choices = 1;
  admission_.SetScheduling(stats, 40);
  EXPECT_EQ(admission_.Stats().waiting, 1u);
  EXPECT_EQ(admission_.Stats().waiting_choices, 2u);
  EXPECT_EQ(admission_.Stats().waiting_tokens, 60u);
  admission_.Started(1, 1);
  stats.running_choices = 2;
  admission_.SetScheduling(stats, 40);
  EXPECT_EQ(admission_.Stats().waiting_choices, 1u);
  stats.running_choices = stats.ended_choices = 1;
  admission_.SetScheduling(stats, 40);
  EXPECT_EQ(admission_.Stats().waiting_choices, 1u);
  EXPECT_TRUE(Admit(more).ok());
  admission_.End(1, EndReason::kStop, absl::StatusCode::kOk);
  SetReady();
  EXPECT_EQ(admission_.Stats().waiting_choices, 3u);
  EXPECT_EQ(admission_.Stats().finished, 1u);
}

TEST_F(AdmissionTest, ChoicesBeyondTheQueueComeInWhenItIsEmpty) {
  GenerateRequest five = Request(90);
  five.choices = 5;
  EXPECT_TRUE(Admit(five).ok()) << "alone it is let in, or it never would be";
  EXPECT_EQ(ErrorReason(Admit(Request(5))), std::string(kReasonQueueFull));
}

TEST_F(AdmissionTest, ChoicesTimesPromptAreNoMoreThanMayBeKeptInMemory) {
  Engine::Options options;
  options.max_running = kMaxChoices;
  options.max_waiting_tokens = 1 << 30;
  Admission admission(options);
  EngineStats stats;
  stats.group = EngineStats::GroupState::kReady;
  stats.max_request_tokens = 1 << 21;
  admission.SetScheduling(stats, 0);
  GenerateRequest large = Request(1'000'000);
  large.choices = 128;
  const absl::Status status = admission.Admit(large, now_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("128 times the prompt of 1000000 tokens"));
  const std::optional<uint32_t> most = [&]() -> std::optional<uint32_t> {
    std::smatch match;
    const std::string text(status.message());
    if (!std::regex_search(text, match, std::regex("at most ([0-9]+) in a request")))
      return std::nullopt;
    return static_cast<uint32_t>(std::stoul(match[1]));
  }();
  ASSERT_TRUE(most.has_value()) << status;
  large.choices = *most + 1;
  EXPECT_EQ(admission.Admit(large, now_).status().code(), absl::StatusCode::kInvalidArgument);
  large.choices = *most;
  EXPECT_TRUE(admission.Admit(large, now_).ok()) << "what it tells to try works";
  large = Request(1'000'000);
  EXPECT_TRUE(admission.Admit(large, now_).ok());
}

TEST_F(AdmissionTest, WithoutThePrefixCacheEachChoiceHasThePrompt) {
  Engine::Options options = Options();
  options.prefix_cache = false;
  Admission admission(options);
  EngineStats stats;
  stats.group = EngineStats::GroupState::kReady;
  stats.max_request_tokens = 1000;
  admission.SetScheduling(stats, 0);
  GenerateRequest two = Request(40);
  two.choices = 2;
  ASSERT_TRUE(admission.Admit(two, now_).ok());
  EXPECT_EQ(admission.Stats().waiting_tokens, 80u);
  EXPECT_EQ(ErrorReason(admission.Admit(Request(21), now_).status()),
            std::string(kReasonQueueFull));
  EXPECT_TRUE(admission.Admit(Request(20), now_).ok());
}

TEST_F(AdmissionTest, BatchAndInteractiveRequestsHaveQueuesOfTheirOwn) {
  GenerateRequest batch = Request();
  for (int i = 0; i < 3; ++i) {
    batch = Request();
    batch.batch = true;
    ASSERT_TRUE(Admit(batch).ok());
  }
  batch = Request();
  batch.batch = true;
  EXPECT_EQ(ErrorReason(Admit(batch)), std::string(kReasonQueueFull));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Admit(Request()).ok());
  EXPECT_EQ(ErrorReason(Admit(Request())), std::string(kReasonQueueFull));
  // One of the batch requests starts: there is room for another one of them.
  admission_.Started(1);
  EngineStats stats = admission_.Stats();
  stats.running = stats.running_choices = 1;
  admission_.SetScheduling(stats, 10);
  EXPECT_TRUE(Admit(batch).ok());
  EXPECT_FALSE(Admit(Request()).ok());
}

TEST_F(AdmissionTest, BatchRequestsThatWerePushedOutKeepNoInteractiveOneOut) {
  for (SequenceId id = 1; id <= 3; ++id) {
    GenerateRequest batch = Request(30);
    batch.batch = true;
    ASSERT_TRUE(Admit(batch).ok());
    admission_.Started(id);
  }
  SetReady();  // nobody runs: all three wait again
  ASSERT_EQ(admission_.Stats().waiting, 3u);
  EXPECT_TRUE(Admit(Request(90)).ok());
  EXPECT_FALSE(Admit(Request(90)).ok());  // that one waits, with its own tokens
}

TEST_F(AdmissionTest, TheEndOfTheQueueIsKeptFromATenantThatHoldsMostOfIt) {
  Engine::Options options = Options();
  options.max_waiting = 16;
  options.max_waiting_tokens = 1000;
  Admission admission(options);
  EngineStats stats;
  stats.group = EngineStats::GroupState::kReady;
  stats.max_request_tokens = 1000;
  admission.SetScheduling(stats, 0);
  const auto admit = [&](const std::string& caller) {
    GenerateRequest request = Request();
    request.caller = caller;
    return admission.Admit(request, now_).status();
  };
  for (int i = 0; i < 14; ++i) ASSERT_TRUE(admit("heavy").ok()) << i;
  EXPECT_EQ(ErrorReason(admit("heavy")), std::string(kReasonQueueFull));
  EXPECT_TRUE(admit("light").ok());
  EXPECT_TRUE(admit("another").ok());
  EXPECT_FALSE(admit("light").ok());
}

TEST_F(AdmissionTest, AWaitBeyondTheDeadlineIsRefusedWithTheTimeToComeAgain) {
  EngineStats stats = admission_.Stats();
  stats.rates = {.prefill_token_seconds = 0.1, .decode_step_seconds = 0, .outputs = 0};
  stats.places = 8;
  admission_.SetScheduling(stats, 0);
  ASSERT_TRUE(Admit(Request(50)).ok());
  EXPECT_EQ(admission_.Stats().predicted_wait, absl::Seconds(5));
  GenerateRequest request = Request();
  request.deadline = now_ + absl::Seconds(2);
  const absl::Status status = Admit(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(status), std::string(kReasonQueueWait));
  EXPECT_EQ(RetryDelay(status), absl::Seconds(3));
  request.deadline = now_ + absl::Seconds(6);
  EXPECT_TRUE(Admit(request).ok());
  // While a group is being rebuilt nobody knows how long it takes.
  stats = admission_.Stats();
  stats.group = EngineStats::GroupState::kLost;
  admission_.SetScheduling(stats, 0);
  EXPECT_EQ(admission_.Stats().predicted_wait, absl::ZeroDuration());
}

TEST_F(AdmissionTest, QueuedTokensAreBoundedButOneLargeRequestMayCome) {
  ASSERT_TRUE(Admit(Request(500)).ok());
  EXPECT_EQ(Admit(Request(1)).code(), absl::StatusCode::kResourceExhausted);
  admission_.End(*admission_.Find("", "0"), EndReason::kStop, absl::StatusCode::kOk);
  ASSERT_TRUE(Admit(Request(60)).ok());
  EXPECT_EQ(Admit(Request(41)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Admit(Request(40)).ok());
}

TEST_F(AdmissionTest, ClosedDoorIsUnavailableWithReasonDraining) {
  admission_.Close();
  const absl::Status status = Admit(Request());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), std::string(kReasonDraining));
}

TEST_F(AdmissionTest, FormingGroupIsUnavailable) {
  admission_.SetScheduling(EngineStats(), 0);
  EXPECT_EQ(Admit(Request()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(AdmissionTest, BookAddsUpWhateverComesAndGoes) {
  ASSERT_TRUE(Admit(Request()).ok());
  ASSERT_TRUE(Admit(Request()).ok());
  EXPECT_FALSE(Admit(Request(0)).ok());
  admission_.End(*admission_.Find("", "0"), EndReason::kStop, absl::StatusCode::kOk);
  const EngineStats stats = admission_.Stats();
  EXPECT_EQ(stats.received, 3u);
  EXPECT_EQ(stats.rejected, 1u);
  EXPECT_EQ(stats.finished, 1u);
  EXPECT_EQ(stats.waiting, 1u);
  EXPECT_EQ(stats.waiting_tokens, 10u);
}

}  // namespace
}  // namespace bitshard
