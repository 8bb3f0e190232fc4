// How often the threads of a rank, and ranks, wait for each other in a step: counted a layer, as
// the difference between models of different depth.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "tests/worker/tiny_model.h"
#include "worker/load/loader.h"
#include "worker/step/step_runner.h"

namespace bitshard {
namespace {

class CountingCollective final : public Collective {
 public:
  explicit CountingCollective(int* calls) : calls_(calls), solo_(MakeSoloCollective()) {}
  int rank() const override { return 0; }
  int world() const override { return 1; }
  absl::Status AllReduceSum(absl::Span<int64_t> values) override {
    ++*calls_;
    return solo_->AllReduceSum(values);
  }
  absl::Status AllGather(absl::Span<const uint8_t> mine, absl::Span<uint8_t> all) override {
    ++*calls_;
    return solo_->AllGather(mine, all);
  }
  absl::Status Broadcast(absl::Span<uint8_t> data, int root) override {
    ++*calls_;
    return solo_->Broadcast(data, root);
  }
  void Abort() override { solo_->Abort(); }

 private:
  int* const calls_;
  const std::unique_ptr<Collective> solo_;
};

struct Waits {
  int threads = 0, ranks = 0;
};

// Of one step in which `sequences` sequences have `tokens` tokens each.
Waits CountStep(uint32_t layers, uint32_t sequences, uint32_t tokens, bool fuse,
                std::vector<std::string>* kinds) {
  TinyModelOptions model_options;
  model_options.format = "q4_1";
  model_options.layers = layers;
  const internal::RankPlan rank = CutTinyModel(MakeTinyModel(model_options), 1)[0];
  ThreadPool pool(2);
  const auto weights = LoadWeights(rank, pool, nullptr);
  CHECK_OK(weights.status());
  StepProfile profile;
  StepRunner::Options options;
  options.numerics.set_activations(internal::NumericsOptions::ACTIVATIONS_A16);
  options.numerics.set_kv_cache_type(internal::NumericsOptions::CACHE_TYPE_BF16);
  options.numerics.set_block_tokens(16);
  options.numerics.set_max_step_tokens(64);
  options.numerics.set_max_slots(8);
  options.pool = &pool;
  options.profile = &profile;
  options.fuse = fuse;
  const auto runner = StepRunner::Bind(rank, *weights, options);
  CHECK_OK(runner.status());
  *kinds = profile.kinds;
  Waits waits;
  CHECK_OK((*runner)->StartEpoch(1, 1, std::make_unique<CountingCollective>(&waits.ranks), 32));
  internal::StepPlan plan;
  plan.set_term(1);
  plan.set_epoch(1);
  plan.set_step(1);
  for (uint32_t s = 0; s < sequences; ++s) {
    internal::NewSequence& sequence = *plan.add_new_sequences();
    sequence.set_slot(s);
    for (uint32_t i = 0; i < tokens; ++i) sequence.add_tokens(i);
    sequence.set_n_prompt(tokens);
    sequence.add_blocks(s);
    sequence.mutable_sampling()->set_top_p(1);
    plan.add_slot(s);
    plan.add_slot_gen(0);
    plan.add_start(0);
    plan.add_n_tokens(tokens);
    plan.add_output_index(0);
    plan.add_flags(internal::ROW_SAMPLE);
    plan.add_n_new_blocks(0);
  }
  const uint64_t before = pool.synchronizations();
  waits.ranks = 0;
  CHECK_OK((*runner)->Run(plan).status());
  waits.threads = static_cast<int>(pool.synchronizations() - before);
  return waits;
}

Waits OfOneLayer(uint32_t sequences, uint32_t tokens, bool fuse = true) {
  std::vector<std::string> kinds;
  const Waits shallow = CountStep(1, sequences, tokens, fuse, &kinds);
  const Waits deep = CountStep(4, sequences, tokens, fuse, &kinds);
  EXPECT_EQ((deep.threads - shallow.threads) % 3, 0);
  return {(deep.threads - shallow.threads) / 3, (deep.ranks - shallow.ranks) / 3};
}

TEST(StepFusion, ThreadsMeetFiveTimesALayerInDecode) {
  // q|k|v, attention with rotation and append, o, gate|up with activation, down.
  EXPECT_EQ(OfOneLayer(1, 1).threads, 5);
}

TEST(StepFusion, RanksMeetTwiceALayer) {
  EXPECT_EQ(OfOneLayer(1, 1).ranks, 2);
  EXPECT_EQ(OfOneLayer(3, 5).ranks, 2);
}

TEST(StepFusion, StepsOfManyTokensAddTheRowsOfNormsAndOfTheAttentionsOutput) {
  // And the keys of a row of several tokens are all appended before the first query reads them.
  EXPECT_EQ(OfOneLayer(4, 1).threads, 8);
  EXPECT_EQ(OfOneLayer(4, 5).threads, 9);
  EXPECT_GT(OfOneLayer(4, 5, /*fuse=*/false).threads, 18);
}

TEST(StepFusion, TakesWholeLayers) {
  std::vector<std::string> kinds;
  CountStep(1, 1, 1, /*fuse=*/true, &kinds);
  const std::vector<std::string> expected = {"embed",
                                             "all_reduce+rms_norm",
                                             "linear+linear+linear",
                                             "rope+rope+attention",
                                             "linear",
                                             "all_reduce+residual_add+rms_norm",
                                             "linear+linear+gated_act",
                                             "linear",
                                             "all_reduce+residual_add+rms_norm",
                                             "lm_head",
                                             "sample"};
  EXPECT_EQ(kinds, expected);
}

}  // namespace
}  // namespace bitshard
