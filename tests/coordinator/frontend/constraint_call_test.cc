// Calls whose constraints are being compiled: callers that go, a busy machine, the end.
#include <memory>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "coordinator/grammar/grammar_compiler.h"
#include "tests/coordinator/frontend/frontend_fixture.h"
#include "tests/coordinator/grammar/compiler_fixture.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;

class ConstraintCallTest : public FrontendTest {
 protected:
  // One thread, which never gets an answer of its guard.
  void Start(absl::Duration wall_time) {
    GrammarCompiler::Options options = CompilerOptions(/*hang=*/true);
    options.threads = 1;
    options.limits.wall_time = wall_time;
    grammars_ = std::make_unique<GrammarCompiler>(Vocabulary(), options);
    options_.grammars = grammars_.get();
    StartServer();
  }

  static v1::GenerateRequest Constrained(const std::string& regex) {
    v1::GenerateRequest request = Request();
    request.mutable_constraint()->set_regex(regex);
    return request;
  }
  void AwaitWaiting(size_t constraints) {
    AwaitTrue(absl::StrCat(constraints, " constraints that wait"),
              [&] { return grammars_->waiting() == constraints; });
  }

  std::unique_ptr<GrammarCompiler> grammars_;
};

TEST_F(ConstraintCallTest, WhatNobodyWaitsForAnyMoreGivesItsPlaceFree) {
  Start(absl::Hours(1));
  grpc::ClientContext first_context, second_context, third_context;
  auto first = stub_->Generate(&first_context, Constrained("a"));
  metrics_.Await("received", 1);
  auto second = stub_->Generate(&second_context, Constrained("b"));
  // A call that is cancelled before it is received is never refused.
  metrics_.Await("received", 2);
  AwaitWaiting(1);  // whichever came first is being tried
  second_context.TryCancel();
  EXPECT_FALSE(Finish(*second).ok());
  first_context.TryCancel();
  EXPECT_FALSE(Finish(*first).ok());
  metrics_.Await("refusals", 2);
  EXPECT_THAT(metrics_.Take(), ElementsAre(RejectReason::kCancelled, RejectReason::kCancelled));
  AwaitWaiting(0);
  // The thread is free for the next, which it tries.
  auto third = stub_->Generate(&third_context, Constrained("c"));
  metrics_.Await("received", 3);
  AwaitWaiting(0);
  third_context.TryCancel();
  EXPECT_FALSE(Finish(*third).ok());
  metrics_.Await("refusals", 3);
  EXPECT_EQ(grammars_->compiled(), 0u);
  EXPECT_EQ(engine_.submitted(), 0u);
}

TEST_F(ConstraintCallTest, ABusyMachineIsNotTheCallersFault) {
  Start(absl::Milliseconds(100));
  const absl::Status status = Refused(Constrained("a"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(RetryDelay(status).has_value()) << status;
  EXPECT_THAT(metrics_.Take(), ElementsAre(RejectReason::kQueueWait));
}

TEST_F(ConstraintCallTest, TheEndOfTheServiceIsNoBadRequest) {
  Start(absl::Hours(1));
  std::thread stopping([this] {
    metrics_.Await("received", 1);
    grammars_->Stop();
  });
  const absl::Status status = Refused(Constrained("a"));
  stopping.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_TRUE(RetryDelay(status).has_value()) << status;
  EXPECT_EQ(ErrorReason(status), "DRAINING");
  EXPECT_THAT(metrics_.Take(), ElementsAre(RejectReason::kDraining));
}

}  // namespace
}  // namespace bitshard
