// The step path allocates nothing but the result that it hands out, however large the model and the
// step.
//
// Counts every operator new of the process while steps run. What a StepResult costs depends on its
// outputs only, so the counts of models of different depth and of steps of different length must be
// equal.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "proto/token_mask.h"
#include "tests/worker/tiny_model.h"
#include "worker/load/loader.h"
#include "worker/step/step_runner.h"

namespace {
std::atomic<uint64_t> allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  std::abort();
}
void* operator new(size_t bytes, std::align_val_t align) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const size_t unit = static_cast<size_t>(align);
  if (void* p = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit)) return p;
  std::abort();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }

namespace bitshard {
namespace {

void AddEdits(internal::SamplingParams& sampling) {
  sampling.set_repetition_penalty(1.5f);
  sampling.set_frequency_penalty(0.5f);
  for (uint32_t token = 0; token < 200; ++token) {
    sampling.add_bias_tokens(token);
    sampling.add_biases(1);
    sampling.add_end_tokens(token / 4);
  }
  sampling.set_allowed(MakeTokenMask(200, /*allowed=*/true));
  sampling.set_min_tokens(2);
}

// Allocations of one prefill step of `tokens` tokens and of one decode step after it.
struct Counts {
  uint64_t prefill = 0, decode = 0;
  friend bool operator==(const Counts&, const Counts&) = default;
};

Counts Count(uint32_t layers, uint32_t tokens, internal::NumericsOptions::Activations activations,
             bool edits, bool pools = false) {
  TinyModelOptions model_options;
  model_options.format = "q4_1";
  model_options.layers = layers;
  const internal::RankPlan rank = CutTinyModel(MakeTinyModel(model_options), 1)[0];
  ThreadPool pool(2);
  const auto weights = LoadWeights(rank, pool, nullptr);
  CHECK_OK(weights.status());
  StepRunner::Options options;
  options.numerics.set_activations(activations);
  options.numerics.set_kv_cache_type(internal::NumericsOptions::CACHE_TYPE_BF16);
  options.numerics.set_block_tokens(16);
  options.numerics.set_max_step_tokens(128);
  options.numerics.set_max_slots(4);
  options.pool = &pool;
  const auto runner = StepRunner::Bind(rank, *weights, options);
  CHECK_OK(runner.status());
  CHECK_OK((*runner)->StartEpoch(1, 1, MakeSoloCollective(), 32));
  Counts counts;
  for (uint64_t step = 1; step <= 2; ++step) {
    internal::StepPlan plan;
    plan.set_term(1);
    plan.set_epoch(1);
    plan.set_step(step);
    if (step == 1) {
      internal::NewSequence& sequence = *plan.add_new_sequences();
      for (uint32_t i = 0; i < tokens; ++i) sequence.add_tokens(i);
      sequence.set_n_prompt(tokens);
      for (uint32_t block = 0; block < 9; ++block) sequence.add_blocks(block);
      sequence.mutable_sampling()->set_top_p(0.9f);
      sequence.mutable_sampling()->set_temperature(1);
      if (edits) AddEdits(*sequence.mutable_sampling());
      if (pools) sequence.set_pooling(internal::POOLING_MEAN);
    }
    plan.add_slot(0);
    plan.add_slot_gen(0);
    plan.add_start(step == 1 ? 0 : tokens);
    plan.add_n_tokens(step == 1 ? tokens : 1);
    plan.add_output_index(0);
    const uint32_t sampled = internal::ROW_SAMPLE | (edits ? uint32_t{internal::ROW_MASKED} : 0);
    plan.add_flags(pools ? uint32_t{internal::ROW_POOL} : sampled);
    if (edits) plan.add_masks(MakeTokenMask(200, /*allowed=*/true));
    plan.add_n_new_blocks(0);
    const uint64_t before = allocations;
    const auto result = (*runner)->Run(plan);
    const uint64_t used = allocations - before;
    CHECK_OK(result.status());
    (step == 1 ? counts.prefill : counts.decode) = used;
    if (pools) break;  // there is nothing after it
  }
  return counts;
}

TEST(StepAllocations, DependOnTheResultAlone) {
  for (const auto activations :
       {internal::NumericsOptions::ACTIVATIONS_A16, internal::NumericsOptions::ACTIVATIONS_F32}) {
    const Counts small = Count(/*layers=*/1, /*tokens=*/3, activations, /*edits=*/false);
    const Counts large = Count(/*layers=*/4, /*tokens=*/120, activations, /*edits=*/false);
    EXPECT_EQ(small.prefill, large.prefill);
    EXPECT_EQ(Count(/*layers=*/4, /*tokens=*/120, activations, /*edits=*/true), large);
    EXPECT_EQ(small.decode, large.decode);
    EXPECT_EQ(large.prefill, large.decode);
    EXPECT_LE(large.decode, 6u);  // the result, its array of outputs, the output
    const Counts vector =
        Count(/*layers=*/4, /*tokens=*/120, activations, /*edits=*/false, /*pools=*/true);
    EXPECT_EQ(vector, Count(/*layers=*/1, /*tokens=*/3, activations, false, /*pools=*/true));
    EXPECT_LE(vector.prefill, 7u);  // likewise, and the values
  }
}

}  // namespace
}  // namespace bitshard
