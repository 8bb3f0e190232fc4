// Sampling parameters on their way through the engine: judged, written into the plan, obeyed at
// the end of the text; log-probabilities of the prompt before the first token.
#include "coordinator/engine/sampling.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/engine/error_reason.h"
#include "proto/status_details.h"
#include "proto/token_mask.h"
#include "tests/coordinator/engine/core_harness.h"

namespace bitshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

GenerateRequest Request(const std::string& text, uint32_t max_tokens) {
  GenerateRequest request;
  for (unsigned char c : text) request.prompt_tokens.push_back(c);
  request.max_tokens = max_tokens;
  return request;
}

TEST(JudgeSampling, WhatWorkersWouldRefuseIsNamed) {
  const auto judge = [](const std::function<void(GenerateRequest&)>& change) {
    GenerateRequest request = Request("x", 4);
    change(request);
    const std::optional<absl::Status> bad = JudgeSampling(request, kByteTokenizerVocab);
    return bad.has_value() ? std::string(bad->message()) : "";
  };
  for (const float v : {kInf, kNan, 0.0f, -1.0f}) {
    EXPECT_THAT(judge([v](auto& r) { r.repetition_penalty = v; }), HasSubstr("repetition_penalty"));
  }
  for (const float v : {kInf, -kInf, kNan}) {
    EXPECT_THAT(judge([v](auto& r) { r.frequency_penalty = v; }), HasSubstr("frequency_penalty"));
    EXPECT_THAT(judge([v](auto& r) { r.presence_penalty = v; }), HasSubstr("presence_penalty"));
    EXPECT_THAT(judge([v](auto& r) { r.logit_bias = {{1, v}}; }), HasSubstr("logit_bias"));
  }
  EXPECT_THAT(judge([](auto& r) { r.logit_bias = {{257, 1.0f}}; }), HasSubstr("token 257"));
  EXPECT_THAT(judge([](auto& r) { r.logit_bias = {{2, 1.0f}, {2, 1.0f}}; }), HasSubstr("token 2"));
  EXPECT_THAT(judge([](auto& r) { r.logit_bias.resize(1025); }), HasSubstr("1024"));
  EXPECT_THAT(judge([](auto& r) { r.allowed_tokens = "x"; }), HasSubstr("allowed_token_ids"));
  EXPECT_THAT(judge([](auto& r) { r.min_tokens = 5; }), HasSubstr("min_tokens"));
  EXPECT_EQ(judge([](auto& r) {
              r.repetition_penalty = 1.5f;
              r.logit_bias = {{0, 1.0f}, {256, -1.0f}};
              r.allowed_tokens = MakeTokenMask(kByteTokenizerVocab, true);
              r.min_tokens = 4;
            }),
            "");
}

TEST(SamplingOf, SaysAllAndNothingThatIsNotNeeded) {
  const auto tokenizer = MakeByteTokenizer();
  GenerateRequest request = Request("x", 4);
  internal::SamplingParams plain;
  plain.set_top_p(1);
  EXPECT_EQ(SamplingOf(request, *tokenizer, kByteTokenizerVocab).SerializeAsString(),
            plain.SerializeAsString());
  request.repetition_penalty = 1.5f;
  request.frequency_penalty = 0.5f;
  request.presence_penalty = -0.5f;
  request.logit_bias = {{3, 1.0f}, {9, -2.0f}};
  request.allowed_tokens = MakeTokenMask(kByteTokenizerVocab, true);
  request.min_tokens = 2;
  request.stop_token_ids = {7, 5, 7};
  const internal::SamplingParams full = SamplingOf(request, *tokenizer, kByteTokenizerVocab);
  EXPECT_EQ(full.repetition_penalty(), 1.5f);
  EXPECT_EQ(full.frequency_penalty(), 0.5f);
  EXPECT_EQ(full.presence_penalty(), -0.5f);
  EXPECT_THAT(full.bias_tokens(), ElementsAre(3u, 9u));
  EXPECT_THAT(full.biases(), ElementsAre(1.0f, -2.0f));
  EXPECT_EQ(full.allowed(), request.allowed_tokens);
  EXPECT_EQ(full.min_tokens(), 2u);
  EXPECT_THAT(full.end_tokens(), ElementsAre(5u, 7u, 256u));
  request.ignore_eos = true;
  EXPECT_THAT(SamplingOf(request, *tokenizer, kByteTokenizerVocab).end_tokens(),
              ElementsAre(5u, 7u));
}

FakeExecutor::Options Group(uint32_t blocks, uint32_t step_tokens) {
  FakeExecutor::Options options;
  options.group.cache_blocks = blocks;
  options.group.max_slots = 8;
  options.group.max_step_tokens = step_tokens;
  return options;
}

// Keeps the prompt's log-probabilities, and when they came.
class PromptLogprobsSink : public RecordingSink {
 public:
  void OnDelta(TokenDelta delta) override {
    if (!delta.prompt_logprobs.empty()) {
      EXPECT_EQ(delta.first_index, 0u);
      EXPECT_TRUE(scores.empty()) << "twice";
      scores = delta.prompt_logprobs;
    }
    RecordingSink::OnDelta(std::move(delta));
  }
  std::vector<TokenLogprobs> scores;
};

const std::string kPrompt = "forty-two letters are enough for some steps.";

void ExpectScores(const std::vector<TokenLogprobs>& scores) {
  ASSERT_EQ(scores.size(), kPrompt.size() - 1);
  for (size_t i = 0; i < scores.size(); ++i) {
    const uint32_t place = static_cast<uint32_t>(i) + 1;
    EXPECT_EQ(scores[i].chosen,
              FakeWorker::ScoreOf(static_cast<unsigned char>(kPrompt[place]), place));
    EXPECT_EQ(scores[i].top.size(), 2u);
  }
}

GenerateRequest WithPromptLogprobs(const std::string& id) {
  GenerateRequest request = Request(kPrompt, 6);
  request.request_id = id;
  request.score_from = 0;
  request.logprobs = true;
  request.top_logprobs = 2;
  request.ignore_eos = true;
  return request;
}

TEST(PromptLogprobs, ComeWithTheFirstTokenAndChangeNoOther) {
  CoreHarness engine({}, Group(64, /*step_tokens=*/16));
  engine.MakeReady();
  const auto scored = std::make_shared<PromptLogprobsSink>(),
             plain = std::make_shared<PromptLogprobsSink>();
  ASSERT_TRUE(engine.Submit(WithPromptLogprobs("a"), scored).ok());
  GenerateRequest without = WithPromptLogprobs("b");
  without.score_from.reset();
  ASSERT_TRUE(engine.Submit(without, plain).ok());
  engine.StepUntilIdle();
  EXPECT_TRUE(scored->AwaitEnd().status.ok()) << scored->AwaitEnd().status;
  ExpectScores(scored->scores);
  EXPECT_TRUE(scored->AwaitEnd().scores.empty());
  EXPECT_EQ(scored->tokens().size(), 6u);
  EXPECT_EQ(scored->tokens(), plain->tokens());
  EXPECT_TRUE(plain->scores.empty());
  EXPECT_EQ(engine.Stats().blocks_free + engine.Stats().blocks_cached, 64u);
}

TEST(PromptLogprobs, ComeOnceAndWholeAfterPreemptionAndLoss) {
  Engine::Options options;
  options.fail_on_group_loss = false;
  // Blocks for one and a half of them: they must give way to each other.
  CoreHarness engine(options, Group(/*blocks=*/6, /*step_tokens=*/8));
  engine.MakeReady();
  const auto a = std::make_shared<PromptLogprobsSink>(), b = std::make_shared<PromptLogprobsSink>();
  ASSERT_TRUE(engine.Submit(WithPromptLogprobs("a"), a).ok());
  ASSERT_TRUE(engine.Submit(WithPromptLogprobs("b"), b).ok());
  for (int i = 0; i < 3; ++i) engine.Step();
  engine.executor().LoseGroup(absl::UnavailableError("test"));
  engine.MakeReady();
  engine.StepUntilIdle();
  for (const auto& sink : {a, b}) {
    EXPECT_TRUE(sink->AwaitEnd().status.ok()) << sink->AwaitEnd().status;
    ExpectScores(sink->scores);
    EXPECT_EQ(sink->tokens(), a->tokens());
  }
}

TEST(NoTokenAllowed, EndsThatRequestWithAClearError) {
  CoreHarness engine({}, Group(64, /*step_tokens=*/64));
  engine.MakeReady();
  engine.executor().set_tamper([](internal::StepResult* result) {
    for (internal::StepOutput& output : *result->mutable_outputs()) {
      if (output.output_index() == 1 && output.slot() == 0)
        output.set_flags(internal::OUTPUT_NO_TOKEN_ALLOWED);
    }
  });
  GenerateRequest request = Request("abc", 4);
  request.ignore_eos = true;
  const auto bad = engine.Send(request), good = engine.Send(request);
  engine.StepUntilIdle();
  const absl::Status status = bad->AwaitEnd().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no token may be output token 1"));
  EXPECT_EQ(ErrorReason(status), kReasonNoTokenAllowed);
  EXPECT_EQ(bad->tokens().size(), 1u);
  EXPECT_TRUE(good->AwaitEnd().status.ok());
  EXPECT_EQ(engine.Stats().blocks_free + engine.Stats().blocks_cached, 64u)
      << "nothing is quarantined";
}

}  // namespace
}  // namespace bitshard
