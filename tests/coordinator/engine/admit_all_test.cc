// Requests that come together: all of them are admitted, or none is, and they have one name.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/engine/admission.h"
#include "coordinator/engine/error_reason.h"
#include "proto/status_details.h"

namespace bitshard {
namespace {

class AdmitAll : public testing::Test {
 protected:
  AdmitAll() {
    EngineStats stats;
    stats.group = EngineStats::GroupState::kReady;
    stats.max_request_tokens = 1000;
    admission_.SetScheduling(stats, 0);
  }
  static Engine::Options Options() {
    Engine::Options options;
    options.max_waiting = 4;
    options.max_waiting_tokens = 100;
    options.context_tokens = 50;
    options.vocab_size = 500;
    return options;
  }
  static std::vector<GenerateRequest> Requests(const std::string& name,
                                               const std::vector<uint32_t>& tokens) {
    std::vector<GenerateRequest> requests;
    for (const uint32_t n : tokens) {
      GenerateRequest& request = requests.emplace_back();
      request.request_id = name;
      request.prompt_tokens.assign(n, 1);
      request.pooling = internal::POOLING_MEAN;
    }
    return requests;
  }
  absl::StatusOr<std::vector<SequenceId>> Admit(const std::vector<GenerateRequest>& requests) {
    std::vector<const GenerateRequest*> all;
    for (const GenerateRequest& request : requests) all.push_back(&request);
    return admission_.AdmitAll(all, now_);
  }
  void End(SequenceId id) { admission_.End(id, EndReason::kLength, absl::StatusCode::kOk); }

  const absl::Time now_ = absl::FromUnixSeconds(1000);
  Admission admission_{Options()};
};

TEST_F(AdmitAll, EachIsOneInTheBook) {
  const auto ids = Admit(Requests("a", {10, 20, 5}));
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(*ids, (std::vector<SequenceId>{1, 2, 3}));
  const EngineStats stats = admission_.Stats();
  EXPECT_EQ(stats.received, 3u);
  EXPECT_EQ(stats.waiting, 3u);
  EXPECT_EQ(stats.waiting_tokens, 35u);
  EXPECT_EQ(stats.rejected, 0u);
}

TEST_F(AdmitAll, OneThatCannotBeKeepsTheOthersOutAndAllCountAsRejected) {
  EXPECT_EQ(ErrorReason(Admit(Requests("a", {10, 51})).status()), kReasonPromptTooLong);
  std::vector<GenerateRequest> late = Requests("a", {10, 10, 10});
  for (GenerateRequest& request : late) request.deadline = now_;
  EXPECT_EQ(Admit(late).status().code(), absl::StatusCode::kDeadlineExceeded);
  const EngineStats stats = admission_.Stats();
  EXPECT_EQ(stats.received, 5u);
  EXPECT_EQ(stats.rejected, 5u);
  EXPECT_EQ(stats.waiting, 0u);
  EXPECT_EQ(stats.ledger.rejected[static_cast<size_t>(RejectReason::kPromptTooLong)], 2u);
  EXPECT_EQ(stats.ledger.rejected[static_cast<size_t>(RejectReason::kDeadline)], 3u);
}

TEST_F(AdmitAll, TheQueueMustHoldAllOfThemUnlessItIsEmpty) {
  ASSERT_TRUE(Admit(Requests("more than it holds", {1, 1, 1, 1, 1})).ok());
  EXPECT_EQ(ErrorReason(Admit(Requests("b", {1})).status()), kReasonQueueFull);
  for (SequenceId id = 1; id <= 5; ++id) End(id);
  ASSERT_TRUE(Admit(Requests("c", {1, 1})).ok());
  EXPECT_EQ(ErrorReason(Admit(Requests("d", {1, 1, 1})).status()), kReasonQueueFull);
  ASSERT_TRUE(Admit(Requests("e", {40})).ok());
  for (SequenceId id = 6; id <= 7; ++id) End(id);
  EXPECT_EQ(ErrorReason(Admit(Requests("f", {31, 30})).status()), kReasonQueueFull)
      << "of 100 tokens 40 are taken";
  EXPECT_TRUE(Admit(Requests("g", {30, 30})).ok());
}

TEST_F(AdmitAll, TheNameIsTakenUntilTheLastHasEndedAndFindsOneThatLives) {
  ASSERT_TRUE(Admit(Requests("a", {1, 2, 3})).ok());
  EXPECT_EQ(Admit(Requests("a", {1})).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(admission_.Find("", "a"), 1u);
  End(1);
  EXPECT_EQ(admission_.Find("", "a"), 2u);
  End(3);
  EXPECT_EQ(admission_.Find("", "a"), 2u);
  EXPECT_EQ(Admit(Requests("a", {1})).status().code(), absl::StatusCode::kAlreadyExists);
  End(2);
  EXPECT_EQ(admission_.Find("", "a"), std::nullopt);
  EXPECT_TRUE(Admit(Requests("a", {1, 1})).ok());
}

}  // namespace
}  // namespace bitshard
