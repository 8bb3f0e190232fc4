// Score through the real engine and real ranks: against transformers' log-probabilities of the
// prompts' own tokens, and the same bits for any number of workers, chunk, batch and instruction
// set.
#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "tests/support/engine_run.h"
#include "tests/support/golden_tensors.h"
#include "tests/support/teacher.h"
#include "tests/support/test_paths.h"
#include "tests/support/thread_group.h"

namespace bitshard {
namespace {

// The goldens' logits differ from ours by 1e-4 of their norm at most (golden_logits_test.cc); on
// the log-probability of one token that is some 1e-3.
constexpr double kLogprobBound = 2e-3;

std::unique_ptr<ThreadGroup> MakeGroup(TestModel& model, int world,
                                       internal::NumericsOptions::Activations activations,
                                       std::vector<Isa> isas = {}) {
  ThreadGroup::Options options;
  options.world = world;
  options.activations = activations;
  options.isas = std::move(isas);
  auto group = ThreadGroup::Create(model, options);
  EXPECT_TRUE(group.ok()) << group.status();
  return *std::move(group);
}

GenerateRequest ScoreRequest(const std::vector<int32_t>& tokens, uint32_t score_from = 0) {
  GenerateRequest request;
  static int names = 0;
  request.request_id = absl::StrCat("score-", ++names);
  request.prompt_tokens = tokens;
  request.score_from = score_from;
  request.logprobs = true;
  request.top_logprobs = 5;
  return request;
}

std::string Bits(const std::vector<TokenLogprobs>& scores) {
  std::string text;
  for (const TokenLogprobs& score : scores) {
    absl::StrAppend(&text, absl::Hex(std::bit_cast<uint32_t>(score.chosen)));
    for (const auto& [token, logprob] : score.top)
      absl::StrAppend(&text, ",", token, ":", absl::Hex(std::bit_cast<uint32_t>(logprob)));
    text += " ";
  }
  return text;
}

class ScoreGolden : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(ScoreGolden, LogprobsOfThePromptEqualTransformers) {
  const auto& [name, workers] = GetParam();
  auto model = TestModel::Open(GoldenModel(name));
  ASSERT_TRUE(model.ok()) << model.status();
  auto golden = ReadGoldenTensors(GoldenModel(name) + "/golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status();
  auto group = MakeGroup(**model, workers, internal::NumericsOptions::ACTIVATIONS_F32);
  double worst = 0;
  for (int n : {17, 130, 700}) {
    const std::string prefix = absl::StrCat("p", n, ".");
    const std::vector<int32_t>& tokens = golden->i32.at(prefix + "input_ids");
    const std::vector<float>& want = golden->f32.at(prefix + "fp32.next_token_logprobs");
    auto run = RunThroughEngine(**model, *group, {ScoreRequest(tokens)}, {});
    ASSERT_TRUE(run.ok()) << run.status();
    const Transcript& got = run->at(0);
    ASSERT_TRUE(got.status.ok()) << got.status;
    ASSERT_EQ(got.scores.size(), want.size());
    ASSERT_EQ(want.size(), tokens.size() - 1);
    for (size_t i = 0; i < want.size(); ++i) {
      const double difference = std::fabs(got.scores[i].chosen - want[i]);
      worst = std::max(worst, difference);
      EXPECT_LT(difference, kLogprobBound) << name << " prompt of " << n << ", token " << i + 1;
      ASSERT_EQ(got.scores[i].top.size(), 5u);
      EXPECT_LE(got.scores[i].chosen, got.scores[i].top[0].second);
      for (size_t t = 1; t < 5; ++t)
        EXPECT_LE(got.scores[i].top[t].second, got.scores[i].top[t - 1].second);
    }
  }
  std::printf("%s at %d workers: largest difference %.3g nats (bound %.0e)\n", name.c_str(),
              workers, worst, kLogprobBound);
}

INSTANTIATE_TEST_SUITE_P(Models, ScoreGolden,
                         testing::Combine(testing::Values("tiny-llama", "tiny-llama-q"),
                                          testing::Values(1, 3)));

// The tap's rows are what golden_logits_test.cc compares; Score must say the same of them.
TEST(Score, EqualsTheLogSoftmaxOfTheLogits) {
  auto model = TestModel::Open(GoldenModel("tiny-llama"));
  ASSERT_TRUE(model.ok()) << model.status();
  auto golden = ReadGoldenTensors(GoldenModel("tiny-llama") + "/golden.safetensors");
  ASSERT_TRUE(golden.ok());
  const std::vector<int32_t>& tokens = golden->i32.at("p130.input_ids");
  LogitsRecorder recorder((*model)->checkpoint().config.vocab_size);
  ThreadGroup::Options options;
  options.world = 2;
  options.logits_tap = recorder.Tap();
  auto group = ThreadGroup::Create(**model, options);
  ASSERT_TRUE(group.ok()) << group.status();
  ASSERT_TRUE(TeacherForce(**group, tokens, /*chunk=*/50, Outputs::kAll).ok());
  auto run = RunThroughEngine(**model, **group, {ScoreRequest(tokens)}, {});
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_EQ(run->at(0).scores.size(), tokens.size() - 1) << run->at(0).status;
  for (uint32_t p = 0; p + 1 < tokens.size(); ++p) {
    const std::vector<double> log_probs = recorder.LogProbs(p);
    EXPECT_NEAR(run->at(0).scores[p].chosen, log_probs[static_cast<size_t>(tokens[p + 1])], 2e-5);
    for (const auto& [token, logprob] : run->at(0).scores[p].top)
      EXPECT_NEAR(logprob, log_probs[static_cast<size_t>(token)], 2e-5);
  }
}

TEST(Score, OfAPromptInFrontOfAGenerationIsTheSameAndChangesNothingOfIt) {
  auto model = TestModel::Open(GoldenModel("gguf-Q4_1"));
  ASSERT_TRUE(model.ok()) << model.status();
  const int32_t vocab = static_cast<int32_t>((*model)->checkpoint().config.vocab_size);
  std::vector<int32_t> tokens;
  for (int i = 0; i < 90; ++i) tokens.push_back(7 + i * 131 % (vocab - 7));
  GenerateRequest plain = ScoreRequest(tokens);
  plain.score_from.reset();
  plain.max_tokens = 8;
  plain.ignore_eos = true;
  plain.temperature = 0.9f;
  plain.seed = 5;
  GenerateRequest both = plain;
  both.request_id = "both";
  both.score_from = 0;
  for (const int workers : {1, 3}) {
    auto group = MakeGroup(**model, workers, internal::NumericsOptions::ACTIVATIONS_A16);
    for (const uint32_t chunk : {0u, 17u}) {
      EngineRunOptions options;
      options.prefill_chunk = chunk;
      // In this order: what the prefix cache has of the prompt must not take scores away.
      auto run = RunThroughEngine(**model, *group, {plain, both, ScoreRequest(tokens)}, options);
      ASSERT_TRUE(run.ok()) << run.status();
      for (const Transcript& transcript : *run) ASSERT_TRUE(transcript.status.ok());
      EXPECT_EQ(run->at(1).DebugString(), run->at(0).DebugString());
      ASSERT_EQ(run->at(1).scores.size(), tokens.size() - 1);
      EXPECT_EQ(Bits(run->at(1).scores), Bits(run->at(2).scores));
    }
  }
}

TEST(Score, SameBitsForAnyWorkersChunkBatchAndInstructionSet) {
  for (const char* name : {"tiny-llama", "gguf-Q4_1"}) {
    auto model = TestModel::Open(GoldenModel(name));
    ASSERT_TRUE(model.ok()) << model.status();
    const int32_t vocab = static_cast<int32_t>((*model)->checkpoint().config.vocab_size);
    std::vector<GenerateRequest> requests;
    for (int r = 0; r < 5; ++r) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < 40 + 61 * r; ++i) tokens.push_back(7 + (i * 131 + r * 17) % (vocab - 7));
      requests.push_back(ScoreRequest(tokens, static_cast<uint32_t>(10 * r)));
    }
    // A generation among them must not change anything.
    GenerateRequest generate = requests[1];
    generate.request_id = "generate";
    generate.score_from.reset();
    generate.max_tokens = 8;
    generate.ignore_eos = true;
    requests.push_back(generate);

    std::vector<std::string> want;
    for (int workers = 1; workers <= 4; ++workers) {
      std::vector<Isa> isas;
      if (workers > 1) {
        for (int rank = 0; rank < workers; ++rank)
          isas.push_back(rank == 0 ? Isa::kScalar : BestIsa());
      }
      auto group = MakeGroup(**model, workers, internal::NumericsOptions::ACTIVATIONS_A16, isas);
      for (const uint32_t chunk : {0u, 17u}) {
        for (const uint32_t concurrent : {1u, 6u}) {
          EngineRunOptions options;
          options.concurrent = concurrent;
          options.prefill_chunk = chunk;
          auto run = RunThroughEngine(**model, *group, requests, options);
          ASSERT_TRUE(run.ok()) << run.status();
          std::vector<std::string> got;
          for (const Transcript& transcript : *run) {
            ASSERT_TRUE(transcript.status.ok()) << transcript.status;
            got.push_back(Bits(transcript.scores) + transcript.DebugString());
          }
          if (want.empty()) want = got;
          for (size_t r = 0; r < got.size(); ++r) {
            EXPECT_EQ(got[r], want[r])
                << name << ": request " << r << " at " << workers << " workers, chunk " << chunk
                << ", " << concurrent << " at once";
          }
        }
      }
    }
    EXPECT_EQ(want[0].empty(), false);
  }
}

}  // namespace
}  // namespace bitshard
