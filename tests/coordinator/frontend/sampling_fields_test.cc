// Sampling fields of a request in the engine's words, and the log-probabilities of its prompt in
// the answer. Which values are refused: validation_test.cc.
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "proto/token_mask.h"
#include "tests/coordinator/frontend/frontend_fixture.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

class SamplingFieldsTest : public FrontendTest {
 protected:
  void SetUp() override { StartServer(); }

  // What the engine gets for it.
  GenerateRequest Submitted(const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    auto stream = stub_->Generate(&context, request);
    const auto live = engine_.Await(++count_);
    live.sink->OnAdmitted();
    live.sink->OnEnd(FakeEngine::End(0));
    EXPECT_TRUE(Finish(*stream).ok());
    return live.request;
  }

 private:
  size_t count_ = 0;
};

TEST_F(SamplingFieldsTest, NeutralByDefault) {
  const GenerateRequest request = Submitted(Request());
  EXPECT_EQ(request.repetition_penalty, 1);
  EXPECT_EQ(request.frequency_penalty, 0);
  EXPECT_EQ(request.presence_penalty, 0);
  EXPECT_TRUE(request.logit_bias.empty());
  EXPECT_TRUE(request.allowed_tokens.empty());
  EXPECT_EQ(request.min_tokens, 0u);
  EXPECT_FALSE(request.score_from.has_value());
}

TEST_F(SamplingFieldsTest, EachArrives) {
  v1::GenerateRequest request = Request();
  v1::Sampling& s = *request.mutable_sampling();
  s.set_repetition_penalty(1.5f);
  s.set_frequency_penalty(-2);
  s.set_presence_penalty(2);
  for (const auto& [token, bias] : std::vector<std::pair<uint32_t, float>>{{200, 1}, {3, -100}})
    (*s.mutable_logit_bias())[token] = bias;
  s.add_banned_token_ids(7);
  request.mutable_stop()->set_min_tokens(8);
  request.mutable_stop()->add_token_ids(5);
  const GenerateRequest got = Submitted(request);
  EXPECT_EQ(got.repetition_penalty, 1.5f);
  EXPECT_EQ(got.frequency_penalty, -2);
  EXPECT_EQ(got.presence_penalty, 2);
  EXPECT_THAT(got.logit_bias, ElementsAre(Pair(3u, -100.0f), Pair(200u, 1.0f)));
  EXPECT_EQ(got.min_tokens, 8u);
  EXPECT_THAT(got.stop_token_ids, ElementsAre(5));
  ASSERT_EQ(got.allowed_tokens.size(), TokenMaskBytes(kByteTokenizerVocab));
  for (uint32_t token = 0; token < kByteTokenizerVocab; ++token)
    EXPECT_EQ(MaskAllows(got.allowed_tokens, token), token != 7) << token;
}

TEST_F(SamplingFieldsTest, AllowedTokensWithoutTheBannedOnes) {
  v1::GenerateRequest request = Request();
  for (const uint32_t token : {4u, 9u, 256u, 9u})
    request.mutable_sampling()->add_allowed_token_ids(token);
  request.mutable_sampling()->add_banned_token_ids(4);
  request.mutable_stop()->set_min_tokens(1);  // 9 is left
  const GenerateRequest got = Submitted(request);
  for (uint32_t token = 0; token < kByteTokenizerVocab; ++token)
    EXPECT_EQ(MaskAllows(got.allowed_tokens, token), token == 9 || token == 256) << token;
}

TokenDelta WithPromptLogprobs() {
  TokenDelta delta = FakeEngine::Delta(0, "x");
  delta.prompt_logprobs.push_back({-0.5f, {{'z', -0.25f}}});
  delta.prompt_logprobs.push_back({-1.5f, {{'y', -0.75f}}});
  return delta;
}

void ExpectPromptLogprobs(
    const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& prompt_logprobs) {
  ASSERT_EQ(prompt_logprobs.size(), 3);
  EXPECT_EQ(prompt_logprobs[0].chosen().text(), "a");
  EXPECT_FALSE(prompt_logprobs[0].chosen().has_logprob()) << "nothing is before it";
  EXPECT_EQ(prompt_logprobs[1].chosen().text(), "b");
  EXPECT_EQ(prompt_logprobs[1].chosen().logprob(), -0.5f);
  EXPECT_EQ(prompt_logprobs[1].top(0).text(), "z");
  EXPECT_EQ(prompt_logprobs[2].chosen().logprob(), -1.5f);
}

TEST_F(SamplingFieldsTest, PromptLogprobsAreInTheFirstMessageAlone) {
  v1::GenerateRequest request = Request("abc");
  request.mutable_output()->set_prompt_logprobs(true);
  grpc::ClientContext context;
  auto stream = stub_->Generate(&context, request);
  const auto live = engine_.Await();
  EXPECT_EQ(live.request.score_from, 0u);
  EXPECT_EQ(live.request.max_tokens, 8u);
  EXPECT_FALSE(live.request.logprobs);
  live.sink->OnAdmitted();
  live.sink->OnDelta(WithPromptLogprobs());
  v1::GenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(response.has_started());
  EXPECT_EQ(response.logprobs_size(), 0);
  ExpectPromptLogprobs(response.prompt_logprobs());
  live.sink->OnDelta(FakeEngine::Delta(1, "y"));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.prompt_logprobs_size(), 0);
  live.sink->OnEnd(FakeEngine::End(2));
  EXPECT_TRUE(Finish(*stream).ok());
}

TEST_F(SamplingFieldsTest, CompleteHasThemToo) {
  v1::CompleteRequest request;
  request.set_text("abc");
  request.set_max_tokens(8);
  request.mutable_output()->set_prompt_logprobs(true);
  std::thread engine([&] {
    const auto live = engine_.Await();
    live.sink->OnAdmitted();
    live.sink->OnDelta(WithPromptLogprobs());
    live.sink->OnDelta(FakeEngine::Delta(1, "y"));
    live.sink->OnEnd(FakeEngine::End(2));
  });
  grpc::ClientContext context;
  v1::CompleteResponse response;
  EXPECT_TRUE(stub_->Complete(&context, request, &response).ok());
  engine.join();
  ExpectPromptLogprobs(response.prompt_logprobs());
  EXPECT_EQ(response.choices(0).text(), "xy");
}

}  // namespace
}  // namespace bitshard
