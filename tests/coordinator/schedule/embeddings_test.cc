// Prompts that become vectors: which rows they have, what counts as their vector, what they take
// from the prefix cache.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/schedule/scheduler.h"
#include "coordinator/schedule/step_planner.h"

namespace bitshard {
namespace {

constexpr uint32_t kPool = internal::ROW_POOL;

SequenceSpec Spec(SequenceId id, uint32_t n_prompt, internal::Pooling pooling) {
  SequenceSpec spec;
  spec.id = id;
  for (uint32_t i = 0; i < n_prompt; ++i) spec.prompt.push_back(i);
  spec.pooling = pooling;
  return spec;
}

SchedulerLimits Limits(uint32_t blocks, uint32_t budget, bool prefix_cache = true) {
  SchedulerLimits limits;
  limits.total_blocks = blocks;
  limits.block_tokens = 4;
  limits.max_slots = 4;
  limits.token_budget = budget;
  limits.prefix_cache = prefix_cache;
  return limits;
}

internal::StepEmbedding& AddEmbedding(const ScheduledRow& row, internal::StepResult* result) {
  internal::StepEmbedding& embedding = *result->add_embeddings();
  embedding.set_slot(row.slot.slot);
  embedding.set_slot_gen(row.slot.gen);
  embedding.add_values(1.5f);
  return embedding;
}

// What the workers would send back of sequences that only embed.
internal::StepResult ResultOf(const StepSchedule& step) {
  internal::StepResult result;
  for (const ScheduledRow& row : step.rows) {
    if (row.start + row.n_tokens == row.sequence->n_prompt) AddEmbedding(row, &result);
  }
  return result;
}

class Embeddings : public testing::Test {
 protected:
  ~Embeddings() override {
    const absl::Status status = scheduler_.CheckInvariants();
    EXPECT_TRUE(status.ok()) << status;
  }
  // The flags of the next step's only row.
  uint32_t Flags() {
    step_ = scheduler_.Schedule();
    EXPECT_EQ(step_.rows.size(), 1u);
    return WriteStepPlan(step_, {})->flags(0);
  }
  std::vector<Commit> Deliver() {
    result_ = ResultOf(step_);
    return scheduler_.CommitStep(result_);
  }

  Scheduler scheduler_;
  StepSchedule step_;
  internal::StepResult result_;
};

TEST_F(Embeddings, AMeanHasAllRowsAndTheVectorComesWithTheLast) {
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/8));
  scheduler_.Add(Spec(1, /*n_prompt=*/19, internal::POOLING_MEAN));
  EXPECT_EQ(Flags(), kPool);
  EXPECT_EQ(WriteStepPlan(step_, {})->new_sequences(0).pooling(), internal::POOLING_MEAN);
  EXPECT_TRUE(Deliver().empty());
  EXPECT_EQ(Flags(), kPool);
  EXPECT_TRUE(Deliver().empty());
  EXPECT_EQ(Flags(), kPool);
  const std::vector<Commit> commits = Deliver();
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].kind, Commit::Kind::kEmbedding);
  EXPECT_EQ(commits[0].id, 1u);
  EXPECT_EQ(commits[0].embedding, &result_.embeddings(0));
  EXPECT_TRUE(scheduler_.Schedule().rows.empty()) << "nothing comes after it";
}

TEST_F(Embeddings, TheLastTokensOwnHasOneRow) {
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/8));
  scheduler_.Add(Spec(1, /*n_prompt=*/9, internal::POOLING_LAST));
  EXPECT_EQ(Flags(), 0u);
  EXPECT_TRUE(Deliver().empty());
  EXPECT_EQ(Flags(), kPool);
  EXPECT_EQ(Deliver().size(), 1u);
}

// With two plans out, the rows of the second go on where those of the first will have ended.
TEST_F(Embeddings, TwoPlansOut) {
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/8));
  scheduler_.Add(Spec(1, /*n_prompt=*/13, internal::POOLING_MEAN));
  const StepSchedule first = scheduler_.Schedule();
  EXPECT_EQ(Flags(), kPool);
  EXPECT_EQ(step_.rows[0].start, 8u);
  EXPECT_TRUE(scheduler_.Schedule().rows.empty());
  EXPECT_TRUE(scheduler_.CommitStep(internal::StepResult()).empty());
  EXPECT_EQ(Deliver().size(), 1u);
}

TEST_F(Embeddings, AMeanTakesNothingFromThePrefixCacheAndLeavesThereWhatItComputes) {
  scheduler_.StartEpoch(Limits(/*blocks=*/20, /*budget=*/32));
  scheduler_.Add(Spec(1, /*n_prompt=*/17, internal::POOLING_MEAN));
  Flags();
  Deliver();
  scheduler_.Remove(1);
  scheduler_.Add(Spec(2, /*n_prompt=*/17, internal::POOLING_MEAN));
  Flags();
  EXPECT_EQ(step_.rows[0].start, 0u);
  Deliver();
  scheduler_.Remove(2);
  scheduler_.Add(Spec(3, /*n_prompt=*/17, internal::POOLING_LAST));
  Flags();
  EXPECT_EQ(step_.rows[0].start, 16u) << "but for its last token all may come from the cache";
  Deliver();
  scheduler_.Remove(3);
}

TEST_F(Embeddings, ALossBetweenChunksBeginsAMeanAnew) {
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/8));
  scheduler_.Add(Spec(1, /*n_prompt=*/13, internal::POOLING_MEAN));
  Flags();
  Deliver();
  scheduler_.EndEpoch();
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/8));
  Flags();
  EXPECT_EQ(step_.rows[0].start, 0u);
  Deliver();
  Flags();
  EXPECT_EQ(Deliver().size(), 1u);
}

TEST_F(Embeddings, WithoutItsVectorTheSequenceIsMissing) {
  for (const bool empty : {false, true}) {
    Scheduler scheduler;
    scheduler.StartEpoch(Limits(/*blocks=*/10, /*budget=*/32));
    scheduler.Add(Spec(1, /*n_prompt=*/9, internal::POOLING_LAST));
    const StepSchedule step = scheduler.Schedule();
    internal::StepResult result;
    if (empty) AddEmbedding(step.rows[0], &result).clear_values();
    const std::vector<Commit> commits = scheduler.CommitStep(result);
    ASSERT_EQ(commits.size(), 1u);
    EXPECT_EQ(commits[0].kind, Commit::Kind::kMissing);
  }
}

TEST_F(Embeddings, OneThatNobodyWaitsForIsDropped) {
  scheduler_.StartEpoch(Limits(/*blocks=*/20, /*budget=*/8));
  scheduler_.Add(Spec(1, /*n_prompt=*/13, internal::POOLING_MEAN));
  Flags();
  result_.Clear();
  AddEmbedding(step_.rows[0], &result_);  // not its last row
  EXPECT_TRUE(scheduler_.CommitStep(result_).empty());
  EXPECT_EQ(scheduler_.stale_outputs(), 1u);
  Flags();
  result_ = ResultOf(step_);
  AddEmbedding(step_.rows[0], &result_);  // a second one
  EXPECT_EQ(scheduler_.CommitStep(result_).size(), 1u);
  EXPECT_EQ(scheduler_.stale_outputs(), 2u);
  scheduler_.Remove(1);
  scheduler_.Add(Spec(2, /*n_prompt=*/5, internal::POOLING_LAST));
  Flags();
  scheduler_.Remove(2);
  EXPECT_TRUE(scheduler_.CommitStep(ResultOf({})).empty());
  EXPECT_EQ(scheduler_.blocks().used(), 0u);
}

TEST_F(Embeddings, NonFiniteOnesEndTheSequence) {
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/8));
  scheduler_.Add(Spec(1, /*n_prompt=*/5, internal::POOLING_LAST));
  Flags();
  result_ = ResultOf(step_);
  result_.mutable_embeddings(0)->clear_values();
  result_.mutable_embeddings(0)->set_flags(internal::OUTPUT_NON_FINITE);
  const std::vector<Commit> commits = scheduler_.CommitStep(result_);
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].kind, Commit::Kind::kNonFinite);
  scheduler_.Quarantine(1);
  EXPECT_EQ(scheduler_.blocks().quarantined(), 2u);
  // A chunk of a mean brings no vector, and says it as rows do that bring nothing.
  scheduler_.Add(Spec(2, /*n_prompt=*/13, internal::POOLING_MEAN));
  Flags();
  result_.Clear();
  internal::StepOutput& output = *result_.add_outputs();
  output.set_slot(step_.rows[0].slot.slot);
  output.set_slot_gen(step_.rows[0].slot.gen);
  output.set_flags(internal::OUTPUT_NON_FINITE);
  const std::vector<Commit> chunk = scheduler_.CommitStep(result_);
  ASSERT_EQ(chunk.size(), 1u);
  EXPECT_EQ(chunk[0].kind, Commit::Kind::kNonFinite);
  scheduler_.Quarantine(2);
}

}  // namespace
}  // namespace bitshard
