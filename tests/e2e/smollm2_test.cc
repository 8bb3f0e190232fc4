// SmolLM2-135M-Instruct (GGUF Q4_1) on two uneven workers against other people's arithmetic and our
// own.
//
// tests/golden/smollm2-llamacpp.json: llama.cpp's log-probabilities with the same weights expanded
// to F32 and F32 everywhere ("f32_reference"). tests/golden/text20k.txt: prose for the divergence
// between our two activation modes.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "tests/support/teacher.h"
#include "tests/support/test_paths.h"
#include "tests/support/thread_group.h"

namespace bitshard {
namespace {

constexpr uint32_t kWindow = 512;  // tokens, as llama-perplexity cuts a text

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

class SmolLm2 : public testing::Test {
 protected:
  void SetUp() override {
    if (SmolLm2Path().empty())
      GTEST_SKIP() << "BITSHARD_TEST_MODELS is not set: tests/run.sh fetches the model";
    auto model = TestModel::Open(SmolLm2Path());
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
  }

  std::unique_ptr<ThreadGroup> Group(internal::NumericsOptions::Activations activations,
                                     LogitsRecorder& recorder) {
    ThreadGroup::Options options;
    options.world = 2;
    options.activations = activations;
    options.max_step_tokens = kWindow;
    options.cache_blocks = 2 * kWindow / 16;
    options.logits_tap = recorder.Tap();
    auto group = ThreadGroup::Create(*model_, options);
    CHECK_OK(group.status());
    return *std::move(group);
  }

  std::unique_ptr<TestModel> model_;
};

TEST_F(SmolLm2, LogProbabilitiesInModeF32EqualLlamaCppsF32Reference) {
  const auto golden = nlohmann::json::parse(ReadFile(GoldenFile("smollm2-llamacpp.json")));
  LogitsRecorder recorder(model_->checkpoint().config.vocab_size);
  auto group = Group(internal::NumericsOptions::ACTIVATIONS_F32, recorder);
  double worst = 0;
  int compared = 0;
  for (const auto& run : golden["runs"]["f32_reference"]) {
    const std::string prompt = run["prompt"];
    const auto prompt_tokens = run["prompt_tokens"].get<std::vector<int32_t>>();
    auto encoded = model_->tokenizer().Encode(prompt, {.add_special = true, .parse_special = true});
    ASSERT_TRUE(encoded.ok()) << encoded.status();
    EXPECT_EQ(*encoded, prompt_tokens) << prompt;

    std::vector<int32_t> tokens = prompt_tokens;
    for (int32_t t : run["tokens"]) tokens.push_back(t);
    recorder.Clear();
    ASSERT_TRUE(TeacherForce(*group, tokens, kWindow, Outputs::kAll).ok());
    for (const auto& entry : run["top20"]) {
      const uint32_t position =
          static_cast<uint32_t>(prompt_tokens.size()) - 1 + entry["pos"].get<uint32_t>();
      const std::vector<double> log_probs = recorder.LogProbs(position);
      const auto& top = entry["top"];
      for (const auto& pair : top) {
        const double difference =
            std::fabs(log_probs[pair[0].get<size_t>()] - pair[1].get<double>());
        worst = std::max(worst, difference);
        ++compared;
        EXPECT_LT(difference, 2e-3) << prompt << " output " << entry["pos"] << " token " << pair[0];
      }
      if (top[0][1].get<double>() - top[1][1].get<double>() > 1e-3) {
        const auto best = std::max_element(log_probs.begin(), log_probs.end()) - log_probs.begin();
        EXPECT_EQ(best, top[0][0].get<int64_t>()) << prompt << " output " << entry["pos"];
      }
    }
  }
  std::printf("%d log-probabilities compared, largest difference %.2e (bound 2e-3)\n", compared,
              worst);
  EXPECT_GE(compared, 5 * 7 * 20);
}

TEST_F(SmolLm2, ModeA16DivergesFromF32ByLessThanAMillionthOfANat) {
  auto tokens = model_->tokenizer().Encode(ReadFile(GoldenFile("text20k.txt")), {});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  const uint64_t vocab = model_->checkpoint().config.vocab_size;
  LogitsRecorder f32(vocab), a16(vocab);
  auto f32_group = Group(internal::NumericsOptions::ACTIVATIONS_F32, f32);
  auto a16_group = Group(internal::NumericsOptions::ACTIVATIONS_A16, a16);
  double kld_sum = 0, kld_max = 0;
  uint64_t positions = 0, same_top = 0;
  const size_t windows = tokens->size() / kWindow;
  ASSERT_GE(windows, 8u);
  for (size_t w = 0; w < windows; ++w) {
    const absl::Span<const int32_t> window =
        absl::MakeConstSpan(*tokens).subspan(w * kWindow, kWindow);
    ASSERT_TRUE(TeacherForce(*f32_group, window, kWindow, Outputs::kAll).ok());
    ASSERT_TRUE(TeacherForce(*a16_group, window, kWindow, Outputs::kAll).ok());
    for (uint32_t p = 0; p < kWindow; ++p) {
      const std::vector<double> reference = f32.LogProbs(p), got = a16.LogProbs(p);
      double kld = 0;
      for (size_t i = 0; i < reference.size(); ++i)
        kld += std::exp(reference[i]) * (reference[i] - got[i]);
      kld_sum += kld;
      kld_max = std::max(kld_max, kld);
      same_top += std::max_element(reference.begin(), reference.end()) - reference.begin() ==
                  std::max_element(got.begin(), got.end()) - got.begin();
      ++positions;
    }
  }
  const double mean = kld_sum / static_cast<double>(positions);
  std::printf(
      "a16 against f32 over %lu positions: mean KLD %.3g (bound 1e-6), max %.3g, same top token "
      "%.4f\n",
      static_cast<unsigned long>(positions), mean, kld_max,
      static_cast<double>(same_top) / static_cast<double>(positions));
  EXPECT_LE(mean, 1e-6);
  EXPECT_GT(mean, 0) << "the two modes gave the same bits: is a16 running at all?";
}

}  // namespace
}  // namespace bitshard
