// Inference.Embed over the wire: what goes to the engine, what comes back, what is refused.
#include <cmath>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "coordinator/engine/error_reason.h"
#include "tests/coordinator/frontend/frontend_fixture.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kEmbed[] = "/bitshard.v1.Inference/Embed";

class EmbedTest : public FrontendTest {
 protected:
  void SetUp() override {
    model_.embedding_size = 3;
    StartServer();
  }

  static v1::EmbedRequest Texts(const std::vector<std::string>& texts) {
    v1::EmbedRequest request;
    for (const std::string& text : texts) request.add_texts(text);
    return request;
  }
  // The engine's answer.
  static RequestEnd Vector(std::vector<float> values, uint32_t prompt_tokens = 3) {
    RequestEnd end = FakeEngine::End(0);
    end.embedding = std::move(values);
    end.prompt_tokens = prompt_tokens;
    return end;
  }
  grpc::Status Embed(const v1::EmbedRequest& request, v1::EmbedResponse* response) {
    grpc::ClientContext context;
    return stub_->Embed(&context, request, response);
  }
  absl::Status Refused(const v1::EmbedRequest& request) {
    v1::EmbedResponse response;
    return FromGrpc(Embed(request, &response));
  }
  // All are cancelled, one after the other; this one is the last.
  void AwaitCancelOf(const std::string& last) {
    AwaitTrue("the cancel of " + last, [&] { return engine_.AwaitCancel() == last; });
  }
  // The answer to a request of one input whose vector the engine gives.
  std::vector<float> Answer(const v1::EmbedRequest& request, const std::vector<float>& pooled) {
    const size_t place = engine_.submitted() + 1;
    std::thread engine([&] { engine_.Await(place).sink->OnEnd(Vector(pooled)); });
    v1::EmbedResponse response;
    const grpc::Status status = Embed(request, &response);
    engine.join();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.embeddings_size(), 1);
    if (response.embeddings_size() != 1) return {};
    const auto& values = response.embeddings(0).values();
    return std::vector<float>(values.begin(), values.end());
  }
};

TEST_F(EmbedTest, EachInputIsARequestAndVectorsComeInTheOrderOfTheInputs) {
  v1::EmbedRequest request = Texts({"abc", "de", "f"});
  request.set_request_id("embed-1");
  request.set_normalize(false);
  request.set_pooling(v1::POOLING_MEAN);
  request.set_priority(-3);
  request.set_service_class(v1::SERVICE_CLASS_BATCH);
  request.set_cache_salt("salt");
  std::thread engine([&] {
    const auto third = engine_.Await(3);
    EXPECT_EQ(third.request.prompt_tokens, (std::vector<int32_t>{'f'}));
    const auto second = engine_.Await(2), first = engine_.Await(1);
    EXPECT_EQ(second.request.prompt_tokens, (std::vector<int32_t>{'d', 'e'}));
    EXPECT_EQ(first.request.prompt_tokens, (std::vector<int32_t>{'a', 'b', 'c'}));
    for (const auto& live : {first, second, third}) {
      EXPECT_EQ(live.request.request_id, "embed-1");
      EXPECT_EQ(live.request.pooling, internal::POOLING_MEAN);
      EXPECT_EQ(live.request.max_tokens, 0u);
      EXPECT_FALSE(live.request.score_from.has_value());
      EXPECT_EQ(live.request.priority, -3);
      EXPECT_TRUE(live.request.batch);
      EXPECT_EQ(live.request.cache_salt, "salt");
      live.sink->OnAdmitted();
    }
    RequestEnd late = Vector({1, 2, 3}, 3);
    late.cached_tokens = 2;
    late.timings = {absl::Milliseconds(4), absl::Milliseconds(30), absl::ZeroDuration()};
    second.sink->OnEnd(Vector({4, 5, 6}, 2));  // waited 1 ms
    third.sink->OnEnd(Vector({7, 8, 9}, 1));
    first.sink->OnEnd(late);
  });
  grpc::ClientContext context;
  v1::EmbedResponse response;
  const grpc::Status status = stub_->Embed(&context, request, &response);
  engine.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.embeddings_size(), 3);
  EXPECT_THAT(response.embeddings(0).values(), ElementsAre(1, 2, 3));
  EXPECT_THAT(response.embeddings(1).values(), ElementsAre(4, 5, 6));
  EXPECT_THAT(response.embeddings(2).values(), ElementsAre(7, 8, 9));
  EXPECT_EQ(response.embeddings(0).prompt_tokens(), 3u);
  EXPECT_EQ(response.embeddings(2).prompt_tokens(), 1u);
  EXPECT_EQ(response.usage().prompt_tokens(), 6u);
  EXPECT_EQ(response.usage().cached_tokens(), 2u);
  EXPECT_EQ(response.usage().completion_tokens(), 0u);
  EXPECT_EQ(response.usage().queue_time().nanos(), 1'000'000) << "the first step of any";
  const auto& ids = context.GetServerInitialMetadata();
  ASSERT_EQ(ids.count("x-request-id"), 1u);
  EXPECT_EQ(ids.find("x-request-id")->second, "embed-1");
}

TEST_F(EmbedTest, VectorsAreScaledToLengthOneUnlessAskedNotTo) {
  EXPECT_THAT(Answer(Texts({"a"}), {3, 0, -4}), ElementsAre(0.6f, 0, -0.8f));
  EXPECT_THAT(Answer(Texts({"a"}), {0, 0, 0}), ElementsAre(0, 0, 0)) << "nothing to scale";
  // Squares that no float could hold.
  const float large = 3e38f, small = 1e-40f, third = static_cast<float>(std::sqrt(1.0 / 3));
  EXPECT_THAT(Answer(Texts({"a"}), {large, large, large}), ElementsAre(third, third, third));
  EXPECT_THAT(Answer(Texts({"a"}), {small, small, small}), ElementsAre(third, third, third));
  v1::EmbedRequest raw = Texts({"a"});
  raw.set_normalize(false);
  EXPECT_THAT(Answer(raw, {3, 0, -4}), ElementsAre(3, 0, -4));
}

TEST_F(EmbedTest, DimensionsCutBeforeTheScaling) {
  v1::EmbedRequest request = Texts({"a"});
  request.set_dimensions(2);
  EXPECT_THAT(Answer(request, {3, 4, 100}), ElementsAre(0.6f, 0.8f));
  request.set_normalize(false);
  EXPECT_THAT(Answer(request, {3, 4, 100}), ElementsAre(3, 4));
  request.set_dimensions(3);
  EXPECT_THAT(Answer(request, {3, 4, 100}), ElementsAre(3, 4, 100));
}

TEST_F(EmbedTest, TokensAreTakenAsTheyAreAndTheLastIsPooledByDefault) {
  v1::EmbedRequest request;
  for (const uint32_t token : {10u, 11u}) request.add_tokens()->add_ids(token);
  std::thread engine([&] {
    const auto second = engine_.Await(2), first = engine_.Await(1);
    EXPECT_EQ(first.request.prompt_tokens, std::vector<int32_t>{10});
    EXPECT_EQ(second.request.prompt_tokens, std::vector<int32_t>{11});
    EXPECT_EQ(first.request.pooling, internal::POOLING_LAST);
    EXPECT_TRUE(first.request.request_id.size() > 4) << "drawn";
    EXPECT_EQ(first.request.request_id, second.request.request_id);
    first.sink->OnEnd(Vector({1, 0, 0}));
    second.sink->OnEnd(Vector({0, 1, 0}));
  });
  v1::EmbedResponse response;
  EXPECT_TRUE(Embed(request, &response).ok());
  engine.join();
  EXPECT_EQ(response.embeddings_size(), 2);
}

TEST_F(EmbedTest, WrongFieldsAreAllNamed) {
  v1::EmbedRequest request = Texts({"a"});
  request.set_request_id("with blank");
  request.add_tokens();
  request.add_tokens()->add_ids(kByteTokenizerVocab);
  request.set_pooling(static_cast<v1::Pooling>(9));
  request.set_dimensions(4);
  request.set_service_class(static_cast<v1::ServiceClass>(9));
  EXPECT_THAT(BadFields(Refused(request)),
              ElementsAre("request_id", "tokens", "tokens[0].ids", "tokens[1].ids[0]", "pooling",
                          "dimensions", "service_class"));
  EXPECT_THAT(BadFields(Refused(v1::EmbedRequest())), ElementsAre("texts"));
  EXPECT_THAT(BadFields(Refused(Texts({"abc", ""}))), ElementsAre("texts[1]"));
  request = Texts({"a"});
  request.set_dimensions(0);
  EXPECT_THAT(BadFields(Refused(request)), ElementsAre("dimensions"));
  request = Texts({"a"});
  request.set_model("other");
  EXPECT_EQ(Refused(request).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Raw(kEmbed, "\xff\xff").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(engine_.submitted(), 0u);
}

TEST_F(EmbedTest, EveryInputMustFitTheContextAndTheirNumberIsBounded) {
  const std::string full(64, 'a');
  EXPECT_THAT(Answer(Texts({full}), {1, 0, 0}), ElementsAre(1, 0, 0));
  const absl::Status refused = Refused(Texts({full + "a", "ok", full + "aa"}));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(refused), kReasonPromptTooLong);
  EXPECT_THAT(BadFields(refused), ElementsAre("texts[0]", "texts[2]"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("in pieces"));
  // Not even tokenized.
  EXPECT_THAT(BadFields(Refused(Texts({std::string(64 * 256 + 1, 'a')}))), ElementsAre("texts[0]"));
  const absl::Status many = Refused(Texts(std::vector<std::string>(513, "a")));
  EXPECT_THAT(BadFields(many), ElementsAre("texts"));
  EXPECT_THAT(std::string(many.message()), HasSubstr("at most 512, not 513"));
  EXPECT_EQ(engine_.submitted(), 1u);
}

TEST_F(EmbedTest, AtMost512InputsAreTaken) {
  std::thread engine([&] {
    for (size_t i = 512; i > 0; --i)
      engine_.Await(i).sink->OnEnd(Vector({static_cast<float>(i), 1, 1}));
  });
  v1::EmbedRequest request = Texts(std::vector<std::string>(512, "a"));
  request.set_normalize(false);
  v1::EmbedResponse response;
  EXPECT_TRUE(Embed(request, &response).ok());
  engine.join();
  ASSERT_EQ(response.embeddings_size(), 512);
  for (int i = 0; i < 512; ++i)
    EXPECT_EQ(response.embeddings(i).values(0), static_cast<float>(i + 1));
}

TEST_F(EmbedTest, OneInputThatFailsEndsTheCallAndTheOthersAreCancelled) {
  std::thread engine([&] {
    const auto third = engine_.Await(3), second = engine_.Await(2), first = engine_.Await(1);
    first.sink->OnEnd(Vector({1, 0, 0}));
    second.sink->OnEnd(FakeEngine::Failed(NonFiniteError(0)));
    AwaitCancelOf("#3");
    third.sink->OnEnd(FakeEngine::Failed(absl::CancelledError("cancelled")));
  });
  const absl::Status status = Refused(Texts({"a", "b", "c"}));
  engine.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_EQ(ErrorReason(status), kReasonNonFinite);
}

TEST_F(EmbedTest, VectorsThatAreTooShortAreOurFault) {
  std::thread engine([&] { engine_.Await().sink->OnEnd(Vector({1, 2})); });
  const absl::Status status = Refused(Texts({"a"}));
  engine.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a vector of 2 values"));
}

TEST_F(EmbedTest, TheEnginesRefusalsAreTheCallers) {
  engine_.set_refusal(QueueFullError("waiting_requests", 1, 1));
  EXPECT_EQ(Refused(Texts({"a", "b"})).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_.submitted(), 0u);
}

TEST_F(EmbedTest, AClientThatGoesIsCancelledInTheEngine) {
  grpc::ClientContext context;
  std::thread engine([&] {
    const auto second = engine_.Await(2), first = engine_.Await(1);
    context.TryCancel();
    AwaitCancelOf("#2");
    first.sink->OnEnd(FakeEngine::Failed(absl::CancelledError("cancelled")));
    second.sink->OnEnd(FakeEngine::Failed(absl::CancelledError("cancelled")));
  });
  v1::EmbedResponse response;
  EXPECT_EQ(stub_->Embed(&context, Texts({"a", "b"}), &response).error_code(),
            grpc::StatusCode::CANCELLED);
  engine.join();
}

TEST_F(EmbedTest, EachInputIsOneReceivedAndOneThatEndedWithoutAToken) {
  std::thread engine([&] {
    const auto second = engine_.Await(2), first = engine_.Await(1);
    first.sink->OnEnd(Vector({1, 0, 0}));
    second.sink->OnEnd(Vector({1, 0, 0}));
  });
  v1::EmbedResponse response;
  EXPECT_TRUE(Embed(Texts({"a", "b"}), &response).ok());
  engine.join();
  engine_.ForgetAll();
  metrics_.Await("without_token", 2);
  EXPECT_EQ(metrics_.Seen("received"), 2);
  EXPECT_EQ(metrics_.Seen("first_tokens"), 0);
  EXPECT_EQ(metrics_.Seen("request"), 1) << "the time of all prompts";
  metrics_.Await(absl::StrCat("OK ", kEmbed), 1);
  // What is refused before its inputs are known is one.
  EXPECT_FALSE(Refused(Texts({"a", ""})).ok());
  EXPECT_EQ(metrics_.Seen("received"), 3);
  EXPECT_THAT(metrics_.Take(), ElementsAre(RejectReason::kBadRequest));
  EXPECT_EQ(metrics_.Seen("refusals"), 1);
}

TEST_F(EmbedTest, ListModelsTellsTheLengthOfVectors) {
  grpc::ClientContext context;
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub_->ListModels(&context, v1::ListModelsRequest(), &models).ok());
  EXPECT_EQ(models.models(0).embedding_size(), 3u);
}

}  // namespace
}  // namespace bitshard
