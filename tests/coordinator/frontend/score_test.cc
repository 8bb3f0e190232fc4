// Inference.Score over the wire: what goes to the engine, what comes back, what is refused.
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "coordinator/engine/error_reason.h"
#include "tests/coordinator/frontend/frontend_fixture.h"

namespace bitshard {
namespace {

class ScoreTest : public FrontendTest {
 protected:
  void SetUp() override { StartServer(); }

  static v1::ScoreRequest ScoreText(const std::string& text) {
    v1::ScoreRequest request;
    request.set_text(text);
    return request;
  }
  // The engine's answer: token i after the first scored one gets -i, with one alternative.
  static RequestEnd Scores(size_t count) {
    RequestEnd end = FakeEngine::End(0);
    for (size_t i = 0; i < count; ++i) {
      TokenLogprobs& score = end.scores.emplace_back();
      score.chosen = -static_cast<float>(i);
      score.top = {{'x', -0.5f}};
    }
    return end;
  }
  absl::Status Refused(const v1::ScoreRequest& request) {
    grpc::ClientContext context;
    v1::ScoreResponse response;
    return FromGrpc(stub_->Score(&context, request, &response));
  }
};

TEST_F(ScoreTest, AnswersWithOneEntryATokenAndTheFirstHasNone) {
  v1::ScoreRequest request = ScoreText("abcd");
  request.set_request_id("score-1");
  request.set_top_logprobs(1);
  std::thread engine([&] {
    const auto live = engine_.Await();
    EXPECT_EQ(live.request.request_id, "score-1");
    EXPECT_EQ(live.request.prompt_tokens, (std::vector<int32_t>{'a', 'b', 'c', 'd'}));
    EXPECT_EQ(live.request.score_from, 0u);
    EXPECT_EQ(live.request.max_tokens, 0u);
    EXPECT_TRUE(live.request.logprobs);
    EXPECT_EQ(live.request.top_logprobs, 1u);
    live.sink->OnAdmitted();
    live.sink->OnEnd(Scores(3));
  });
  grpc::ClientContext context;
  v1::ScoreResponse response;
  const grpc::Status status = stub_->Score(&context, request, &response);
  engine.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.logprobs_size(), 4);
  EXPECT_FALSE(response.logprobs(0).chosen().has_logprob());
  EXPECT_EQ(response.logprobs(0).chosen().token_id(), 'a');
  EXPECT_EQ(response.logprobs(0).top_size(), 0);
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(response.logprobs(i).chosen().token_id(), static_cast<uint32_t>('a' + i));
    EXPECT_EQ(response.logprobs(i).chosen().text(), std::string(1, static_cast<char>('a' + i)));
    EXPECT_EQ(response.logprobs(i).chosen().logprob(), -static_cast<float>(i - 1));
    ASSERT_EQ(response.logprobs(i).top_size(), 1);
    EXPECT_EQ(response.logprobs(i).top(0).text(), "x");
  }
  EXPECT_EQ(response.usage().prompt_tokens(), 3u);
  EXPECT_EQ(context.GetServerInitialMetadata().count("x-request-id"), 1u);
}

TEST_F(ScoreTest, TokensBeforeTheFirstAskedForHaveNoLogprob) {
  v1::ScoreRequest request;
  for (const uint32_t token : {10u, 11u, 12u, 13u}) request.mutable_tokens()->add_ids(token);
  request.set_first_token(2);
  std::thread engine([&] {
    const auto live = engine_.Await();
    EXPECT_EQ(live.request.score_from, 2u);
    live.sink->OnEnd(Scores(2));
  });
  grpc::ClientContext context;
  v1::ScoreResponse response;
  const grpc::Status status = stub_->Score(&context, request, &response);
  engine.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.logprobs_size(), 4);
  EXPECT_FALSE(response.logprobs(1).chosen().has_logprob());
  EXPECT_TRUE(response.logprobs(2).chosen().has_logprob());
  EXPECT_EQ(response.logprobs(3).chosen().logprob(), -1.0f);
}

TEST_F(ScoreTest, AFullContextIsScoredAndOneTokenMoreIsRefused) {
  std::thread engine([&] { engine_.Await().sink->OnEnd(Scores(63)); });
  grpc::ClientContext context;
  v1::ScoreResponse response;
  EXPECT_TRUE(stub_->Score(&context, ScoreText(std::string(64, 'a')), &response).ok());
  engine.join();
  const absl::Status refused = Refused(ScoreText(std::string(65, 'a')));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(refused), kReasonPromptTooLong);
  EXPECT_EQ(BadFields(refused), std::vector<std::string>{"text"});
}

TEST_F(ScoreTest, WrongFieldsAreAllNamed) {
  v1::ScoreRequest request;
  request.mutable_tokens()->add_ids(kByteTokenizerVocab);
  request.set_top_logprobs(21);
  request.set_request_id("with blank");
  EXPECT_EQ(BadFields(Refused(request)),
            (std::vector<std::string>{"request_id", "tokens.ids[0]", "top_logprobs"}));
  EXPECT_EQ(BadFields(Refused(v1::ScoreRequest())), std::vector<std::string>{"input"});
  EXPECT_EQ(BadFields(Refused(ScoreText(""))), std::vector<std::string>{"text"});
  request = ScoreText("abc");
  request.set_first_token(3);
  EXPECT_EQ(BadFields(Refused(request)), std::vector<std::string>{"first_token"});
  request = ScoreText("abc");
  request.set_model("other");
  EXPECT_EQ(Refused(request).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Raw("/bitshard.v1.Inference/Score", "\xff\xff").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(engine_.submitted(), 0u);
}

TEST_F(ScoreTest, TheEnginesErrorsAreTheCallers) {
  std::thread engine([&] { engine_.Await().sink->OnEnd(FakeEngine::Failed(NonFiniteError(0))); });
  EXPECT_EQ(Refused(ScoreText("abc")).code(), absl::StatusCode::kInternal);
  engine.join();
  engine_.set_refusal(QueueFullError("waiting_requests", 1, 1));
  EXPECT_EQ(Refused(ScoreText("abc")).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(ScoreTest, AClientThatGoesIsCancelledInTheEngine) {
  grpc::ClientContext context;
  std::thread engine([&] {
    const auto live = engine_.Await();
    context.TryCancel();
    EXPECT_EQ(engine_.AwaitCancel(), "#1");
    live.sink->OnEnd(FakeEngine::Failed(absl::CancelledError("cancelled")));
  });
  v1::ScoreResponse response;
  EXPECT_EQ(stub_->Score(&context, ScoreText("abc"), &response).error_code(),
            grpc::StatusCode::CANCELLED);
  engine.join();
}

}  // namespace
}  // namespace bitshard
