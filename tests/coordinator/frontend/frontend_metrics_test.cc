// What the frontend tells the metrics: every request once as received, and once as refused, as one
// with a first token, or as one without; every gRPC call by its end.

#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/coordinator/frontend/frontend_fixture.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;

constexpr char kGenerate[] = "/bitshard.v1.Inference/Generate";

class FrontendMetricsTest : public FrontendTest {
 protected:
  void SetUp() override { StartServer(); }
  // The engine is through with its requests.
  void Forget() { engine_.ForgetAll(); }
};

TEST_F(FrontendMetricsTest, TheFirstTokenIsCountedWhenItIsWrittenAndOnce) {
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Request());
  auto live = engine_.Await();
  live.sink->OnAdmitted();
  EXPECT_EQ(metrics_.Seen("received"), 1);
  EXPECT_EQ(metrics_.Seen("first_tokens"), 0);
  live.sink->OnDelta(FakeEngine::Delta(0, "a"));
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(metrics_.Seen("first_tokens"), 1) << "it counts before the client has it";
  live.sink->OnDelta(FakeEngine::Delta(1, "b"));
  live.sink->OnEnd(FakeEngine::End(2));
  EXPECT_TRUE(Finish(*stream).ok());
  live.sink.reset();
  Forget();
  metrics_.Await(absl::StrCat("OK ", kGenerate), 1);
  EXPECT_EQ(metrics_.Seen("first_tokens"), 1);
  EXPECT_EQ(metrics_.Seen("without_token"), 0);
  EXPECT_EQ(metrics_.Seen("refusals"), 0);
  EXPECT_EQ(metrics_.Seen("request"), 1) << "the time of its prompt";
  EXPECT_EQ(metrics_.Seen("backlog"), 0) << "all pieces have gone";
}

TEST_F(FrontendMetricsTest, WhoEndsBeforeATokenIsCountedForThat) {
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, Request());
  {
    const auto live = engine_.Await();
    live.sink->OnEnd(FakeEngine::Failed(absl::DeadlineExceededError("late")));
  }
  EXPECT_EQ(Finish(*stream).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  Forget();
  metrics_.Await("without_token", 1);
  metrics_.Await(absl::StrCat("DEADLINE_EXCEEDED ", kGenerate), 1);
  EXPECT_EQ(metrics_.Seen("first_tokens"), 0);
}

TEST_F(FrontendMetricsTest, ACompletionsTokenCountsWhenItIsPutIntoTheAnswer) {
  std::thread engine([this] {
    const auto live = engine_.Await();
    live.sink->OnDelta(FakeEngine::Delta(0, "a"));
    EXPECT_EQ(metrics_.Seen("first_tokens"), 1);
    live.sink->OnDelta(FakeEngine::Delta(1, "b"));
    live.sink->OnEnd(FakeEngine::End(2));
  });
  grpc::ClientContext context;
  v1::CompleteRequest request;
  request.set_text("abc");
  request.set_max_tokens(2);
  v1::CompleteResponse response;
  EXPECT_TRUE(stub_->Complete(&context, request, &response).ok());
  engine.join();
  Forget();
  metrics_.Await("OK /bitshard.v1.Inference/Complete", 1);
  EXPECT_EQ(metrics_.Seen("first_tokens"), 1);
  EXPECT_EQ(metrics_.Seen("without_token"), 0);
}

TEST_F(FrontendMetricsTest, RefusalsAreTimedWhoeverRefuses) {
  EXPECT_EQ(Raw(kGenerate, "\xff\xff").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(metrics_.Take(), ElementsAre(RejectReason::kBadRequest));
  EXPECT_EQ(metrics_.Seen("refusals"), 1);
  engine_.set_refusal(absl::ResourceExhaustedError("full"));
  EXPECT_EQ(Refused(Request()).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(metrics_.Take(), ElementsAre()) << "the engine's own book has it";
  EXPECT_EQ(metrics_.Seen("refusals"), 2);
  EXPECT_EQ(metrics_.Seen("received"), 2);
  metrics_.Await(absl::StrCat("INVALID_ARGUMENT ", kGenerate), 1);
  metrics_.Await(absl::StrCat("RESOURCE_EXHAUSTED ", kGenerate), 1);
  EXPECT_EQ(metrics_.Seen("without_token"), 0);
}

TEST_F(FrontendMetricsTest, OtherCallsAreNoRequestsButAreCounted) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text("abc");
  v1::TokenizeResponse response;
  EXPECT_TRUE(stub_->Tokenize(&context, request, &response).ok());
  metrics_.Await("OK /bitshard.v1.Inference/Tokenize", 1);
  EXPECT_EQ(metrics_.Seen("start /bitshard.v1.Inference/Tokenize"), 1);
  EXPECT_EQ(metrics_.Seen("tokenize"), 1);
  EXPECT_EQ(metrics_.Seen("received"), 0) << "it asks for no tokens";
}

}  // namespace
}  // namespace bitshard
