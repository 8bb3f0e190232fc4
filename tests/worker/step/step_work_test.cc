#include "worker/step/step_work.h"

#include <cstdint>
#include <utility>

#include "gtest/gtest.h"

namespace bitshard {
namespace {

constexpr uint64_t kBlockBytes = 1000;
constexpr uint32_t kBlockTokens = 16;

PackedMatrix Matrix(uint64_t rows, uint64_t cols) {
  PackedSpec spec;
  spec.rows = rows;
  spec.cols = cols;
  return PackedMatrixBuilder(spec).Build();
}

void AddRow(internal::StepPlan& plan, uint32_t start, uint32_t n_tokens, uint32_t flags) {
  plan.add_slot(0);
  plan.add_start(start);
  plan.add_n_tokens(n_tokens);
  plan.add_flags(flags);
}

class StepWorkTest : public ::testing::Test {
 protected:
  StepWorkTest() {
    weights_.matrices.push_back(Matrix(32, 64));  // embed: looked up, not multiplied
    weights_.matrices.push_back(Matrix(16, 32));
    weights_.matrices.push_back(Matrix(48, 64));
    graph_.add_nodes()->mutable_embed()->set_weight(0);
    graph_.add_nodes()->mutable_linear()->set_weight(1);
    graph_.add_nodes()->mutable_lm_head()->set_weight(2);
    work_ = StepWork(graph_, weights_, kBlockBytes, kBlockTokens);
  }
  uint64_t linear_bytes() const { return weights_.matrices[1].bytes(); }
  uint64_t head_bytes() const { return weights_.matrices[2].bytes(); }

  internal::ModelGraph graph_;
  LoadedWeights weights_;
  StepWork work_;
};

TEST_F(StepWorkTest, AnEmptyStepDoesNothing) {
  const StepWork::Amount amount = work_.Of(internal::StepPlan());
  EXPECT_EQ(amount.read_bytes, 0u);
  EXPECT_EQ(amount.flops, 0u);
}

TEST_F(StepWorkTest, WeightsAreReadOnceAndTheCacheForEachRow) {
  internal::StepPlan plan;
  AddRow(plan, 0, 17, 0);                     // two blocks
  AddRow(plan, 31, 1, internal::ROW_SAMPLE);  // two blocks
  const StepWork::Amount amount = work_.Of(plan);
  EXPECT_EQ(amount.read_bytes, linear_bytes() + head_bytes() + 4 * kBlockBytes);
  EXPECT_EQ(amount.flops, 18u * 2 * 16 * 32 + 1u * 2 * 48 * 64);
}

TEST_F(StepWorkTest, WithoutAnOutputTheHeadRests) {
  internal::StepPlan plan;
  AddRow(plan, 0, 3, 0);
  const StepWork::Amount amount = work_.Of(plan);
  EXPECT_EQ(amount.read_bytes, linear_bytes() + kBlockBytes);
  EXPECT_EQ(amount.flops, 3u * 2 * 16 * 32);
}

TEST_F(StepWorkTest, EveryTokenOfAScoredRowIsAnOutput) {
  internal::StepPlan plan;
  AddRow(plan, 0, 5, internal::ROW_SCORE);
  EXPECT_EQ(work_.Of(plan).flops, 5u * 2 * 16 * 32 + 5u * 2 * 48 * 64);
}

}  // namespace
}  // namespace bitshard
