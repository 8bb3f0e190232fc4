// Our f32 mode against transformers in FP32 on the same BF16 weights, at 1 to 4 workers:
// last-position logits of the four golden prompts, and the greedy continuation (end token
// suppressed, as when the goldens were made).
//
// The goldens' smallest top-1/top-2 gap along the greedy paths is 1.5e-3 (golden.json), above the
// 1e-3 below which equality would mean nothing; so every token must be equal.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "tests/support/golden_tensors.h"
#include "tests/support/teacher.h"
#include "tests/support/test_paths.h"
#include "tests/support/thread_group.h"

namespace bitshard {
namespace {

constexpr double kRelativeL2Bound = 1e-4;

class GoldenLogits : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(GoldenLogits, LastLogitsAndGreedyTokensEqualTransformers) {
  const auto& [name, workers] = GetParam();
  auto model = TestModel::Open(GoldenModel(name));
  ASSERT_TRUE(model.ok()) << model.status();
  auto golden = ReadGoldenTensors(GoldenModel(name) + "/golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status();

  LogitsRecorder recorder((*model)->checkpoint().config.vocab_size);
  ThreadGroup::Options options;
  options.world = workers;
  options.logits_tap = recorder.Tap();
  auto group = ThreadGroup::Create(**model, options);
  ASSERT_TRUE(group.ok()) << group.status();

  double worst = 0;
  for (int n : {1, 17, 130, 700}) {
    const std::string prefix = absl::StrCat("p", n, ".");
    const std::vector<int32_t>& greedy = golden->i32.at(prefix + "fp32.greedy32");
    std::vector<int32_t> tokens = golden->i32.at(prefix + "input_ids");
    tokens.insert(tokens.end(), greedy.begin(), greedy.end());
    recorder.Clear();
    ASSERT_TRUE(TeacherForce(**group, tokens, /*chunk=*/512, Outputs::kAll).ok());

    const absl::Span<const float> last = recorder.At(static_cast<uint32_t>(n) - 1);
    const double error = RelativeL2(std::vector<float>(last.begin(), last.end()),
                                    golden->f32.at(prefix + "fp32.last_logits"));
    worst = std::max(worst, error);
    EXPECT_LT(error, kRelativeL2Bound) << name << " at " << workers << " workers, prompt of " << n;

    for (size_t i = 0; i < greedy.size(); ++i) {
      const absl::Span<const float> row =
          recorder.At(static_cast<uint32_t>(n - 1) + static_cast<uint32_t>(i));
      std::vector<float> allowed(row.begin(), row.end());
      for (int32_t end_token : (*model)->checkpoint().config.eos_ids) {
        allowed[static_cast<size_t>(end_token)] = -std::numeric_limits<float>::infinity();
      }
      const auto best = std::max_element(allowed.begin(), allowed.end()) - allowed.begin();
      EXPECT_EQ(best, greedy[i]) << name << " at " << workers << " workers, prompt of " << n
                                 << ", output " << i;
    }

    // The sampler's own greedy path, token fed back by the worker. Ours may end where the golden's
    // end token was suppressed.
    const auto own = GreedyContinue(**group, golden->i32.at(prefix + "input_ids"),
                                    static_cast<uint32_t>(greedy.size()));
    ASSERT_TRUE(own.ok()) << own.status();
    const std::vector<int32_t>& eos = (*model)->checkpoint().config.eos_ids;
    for (size_t i = 0; i < greedy.size(); ++i) {
      if (std::find(eos.begin(), eos.end(), (*own)[i]) != eos.end()) break;
      EXPECT_EQ((*own)[i], greedy[i])
          << name << " at " << workers << " workers, prompt of " << n << ", sampled output " << i;
    }
  }
  std::printf("%s at %d workers: largest relative L2 error %.3g (bound %.0e)\n", name.c_str(),
              workers, worst, kRelativeL2Bound);
}

// The golden's tensors p<n><suffix> for prompts of n tokens, which are in `prompts_of`.
void CompareLastLogits(const std::string& name, int workers, const std::string& prompts_of,
                       const std::vector<int>& prompts, const std::string& suffix) {
  auto model = TestModel::Open(GoldenModel(name));
  ASSERT_TRUE(model.ok()) << model.status();
  auto golden = ReadGoldenTensors(GoldenModel(name) + "/golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status();
  auto base = ReadGoldenTensors(GoldenModel(prompts_of) + "/golden.safetensors");
  ASSERT_TRUE(base.ok()) << base.status();

  LogitsRecorder recorder((*model)->checkpoint().config.vocab_size);
  ThreadGroup::Options options;
  options.world = workers;
  options.logits_tap = recorder.Tap();
  auto group = ThreadGroup::Create(**model, options);
  ASSERT_TRUE(group.ok()) << group.status();
  double worst = 0;
  for (int n : prompts) {
    recorder.Clear();
    ASSERT_TRUE(
        TeacherForce(**group, base->i32.at(absl::StrCat("p", n, ".input_ids")), 512, Outputs::kLast)
            .ok());
    const absl::Span<const float> last = recorder.At(static_cast<uint32_t>(n) - 1);
    const double error = RelativeL2(std::vector<float>(last.begin(), last.end()),
                                    golden->f32.at(absl::StrCat("p", n, suffix)));
    worst = std::max(worst, error);
    EXPECT_LT(error, kRelativeL2Bound) << name << " at " << workers << " workers, prompt of " << n;
  }
  std::printf("%s at %d workers: largest relative L2 error %.3g (bound %.0e)\n", name.c_str(),
              workers, worst, kRelativeL2Bound);
}

// GGUF files of tiny-llama-q: the golden is transformers in FP32 with the weights that the gguf
// package dequantizes.
class GoldenGgufLogits : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(GoldenGgufLogits, LastLogitsEqualTransformersWithTheDequantizedWeights) {
  const auto& [name, workers] = GetParam();
  CompareLastLogits(name, workers, "tiny-llama-q", {1, 17, 130, 700},
                    ".last_logits.tool_weights_fp32");
}

// compressed-tensors checkpoints of tiny-llama-q: the golden is transformers in FP32 with integer
// times scale, not rounded.
class GoldenCompressedLogits : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(GoldenCompressedLogits, LastLogitsEqualTransformersWithTheExactWeights) {
  const auto& [name, workers] = GetParam();
  CompareLastLogits(name, workers, "tiny-llama-q", {1, 17, 130, 700},
                    ".last_logits.exact_weights_fp32");
}

// A random Qwen2, tied, in both containers: the golden is tests/golden/models/tiny_qwen2.py, numpy
// in float64.
class GoldenQwen2Logits : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(GoldenQwen2Logits, LastLogitsEqualAnIndependentImplementation) {
  const auto& [name, workers] = GetParam();
  CompareLastLogits(name, workers, "tiny-qwen2", {1, 17, 130}, ".last_logits");
}

std::string CaseName(const testing::TestParamInfo<std::tuple<std::string, int>>& info) {
  std::string name = absl::StrCat(std::get<0>(info.param), "_at_", std::get<1>(info.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(
    Models, GoldenCompressedLogits,
    testing::Combine(testing::Values("ct-int3-g32-g128", "ct-int4-embed-lmhead-int8",
                                     "ct-int4-g32-asym", "ct-int5-g32-g128", "ct-int6-channel"),
                     testing::Values(1, 2, 3, 4)),
    CaseName);
INSTANTIATE_TEST_SUITE_P(Models, GoldenQwen2Logits,
                         testing::Combine(testing::Values("tiny-qwen2", "tiny-qwen2-gguf"),
                                          testing::Values(1, 2, 3, 4)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Models, GoldenGgufLogits,
                         testing::Combine(testing::Values("gguf-Q4_0", "gguf-Q4_1", "gguf-Q8_0",
                                                          "gguf-F16", "gguf-Q4_K_M", "gguf-Q5_K_M",
                                                          "gguf-Q6_K"),
                                          testing::Values(1, 2, 3, 4)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Models, GoldenLogits,
                         testing::Combine(testing::Values("tiny-llama", "tiny-llama-q"),
                                          testing::Values(1, 2, 3, 4)),
                         CaseName);

}  // namespace
}  // namespace bitshard
