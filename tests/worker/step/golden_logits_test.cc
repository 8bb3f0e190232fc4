// The step runner on a real checkpoint against another program's numbers: last-position logits of
// tiny-llama's golden prompts (transformers, FP32). One rank; tests/e2e has more of them, and more
// models.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "coordinator/checkpoint/checkpoint.h"
#include "coordinator/models/model_builder.h"
#include "coordinator/shard/shard.h"
#include "tests/support/golden_tensors.h"
#include "tests/support/test_paths.h"
#include "worker/load/loader.h"
#include "worker/step/step_runner.h"

namespace bitshard {
namespace {

constexpr uint32_t kMaxTokens = 256;

TEST(StepRunner, TinyLlamaGivesTheGoldenLogits) {
  const std::string path = GoldenModel("tiny-llama");
  const auto checkpoint = OpenCheckpoint(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto graph = BuildModelGraph(checkpoint->config, checkpoint->index);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto plans = ShardModel(*graph, checkpoint->index, {1.0});
  ASSERT_TRUE(plans.ok()) << plans.status();
  const auto golden = ReadGoldenTensors(path + "/golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status();

  ThreadPool pool(2);
  const auto weights = LoadWeights((*plans)[0], pool, nullptr);
  ASSERT_TRUE(weights.ok()) << weights.status();
  std::vector<float> logits;
  StepRunner::Options options;
  options.numerics.set_activations(internal::NumericsOptions::ACTIVATIONS_F32);
  options.numerics.set_kv_cache_type(internal::NumericsOptions::CACHE_TYPE_F32);
  options.numerics.set_block_tokens(16);
  options.numerics.set_max_step_tokens(kMaxTokens);
  options.numerics.set_max_slots(1);
  options.pool = &pool;
  options.logits_tap = [&](uint32_t, uint32_t, absl::Span<const float> row) {
    logits.assign(row.begin(), row.end());
  };
  const auto runner = StepRunner::Bind((*plans)[0], *weights, options);
  ASSERT_TRUE(runner.ok()) << runner.status();

  uint64_t epoch = 0;
  for (const int n : {1, 17, 130, 700}) {
    const std::vector<int32_t>& tokens = golden->i32.at(absl::StrCat("p", n, ".input_ids"));
    ASSERT_TRUE((*runner)->StartEpoch(1, ++epoch, MakeSoloCollective(), /*blocks=*/64).ok());
    uint64_t step = 0;
    for (uint32_t start = 0; start < tokens.size(); start += kMaxTokens) {
      internal::StepPlan plan;
      plan.set_term(1);
      plan.set_epoch(epoch);
      plan.set_step(++step);
      if (start == 0) {
        internal::NewSequence& sequence = *plan.add_new_sequences();
        for (const int32_t token : tokens) sequence.add_tokens(static_cast<uint32_t>(token));
        sequence.set_n_prompt(static_cast<uint32_t>(tokens.size()));
        for (uint32_t block = 0; block < (tokens.size() + 15) / 16; ++block)
          sequence.add_blocks(block);
        sequence.mutable_sampling()->set_top_p(1);
      }
      const uint32_t end =
          std::min<uint32_t>(start + kMaxTokens, static_cast<uint32_t>(tokens.size()));
      plan.add_slot(0);
      plan.add_slot_gen(0);
      plan.add_start(start);
      plan.add_n_tokens(end - start);
      plan.add_output_index(0);
      plan.add_flags(end == tokens.size() ? internal::ROW_SAMPLE : 0);
      plan.add_n_new_blocks(0);
      const auto result = (*runner)->Run(plan);
      ASSERT_TRUE(result.ok()) << result.status();
    }
    const double error =
        RelativeL2(logits, golden->f32.at(absl::StrCat("p", n, ".fp32.last_logits")));
    EXPECT_LT(error, 1e-4) << "prompt of " << n;
    std::printf("prompt of %d: relative L2 error %.3g\n", n, error);
  }
}

}  // namespace
}  // namespace bitshard
