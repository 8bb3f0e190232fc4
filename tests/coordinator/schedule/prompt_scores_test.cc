// Prompts that are scored before something is generated after them.
#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/schedule/scheduler.h"
#include "coordinator/schedule/step_planner.h"

namespace bitshard {
namespace {

constexpr uint32_t kSampleAndScore = internal::ROW_SAMPLE | internal::ROW_SCORE;

SequenceSpec Spec(SequenceId id, uint32_t n_prompt, uint32_t max_tokens, uint32_t score_from) {
  SequenceSpec spec;
  spec.id = id;
  for (uint32_t i = 0; i < n_prompt; ++i) spec.prompt.push_back(i);
  spec.max_tokens = max_tokens;
  spec.score_from = score_from;
  return spec;
}

SchedulerLimits Limits(uint32_t blocks, uint32_t budget, bool prefix_cache = false) {
  SchedulerLimits limits;
  limits.total_blocks = blocks;
  limits.block_tokens = 4;
  limits.max_slots = 4;
  limits.token_budget = budget;
  limits.prefix_cache = prefix_cache;
  return limits;
}

// What the workers would send back: the log-probability of token i is -i, the token 7.
internal::StepResult ResultOf(const StepSchedule& step, std::vector<uint32_t>& score_from) {
  internal::StepResult result;
  const auto plan = WriteStepPlan(step, {});
  int entering = 0;
  for (size_t r = 0; r < step.rows.size(); ++r) {
    const ScheduledRow& row = step.rows[r];
    if (score_from.size() <= row.slot.slot) score_from.resize(row.slot.slot + 1);
    if (row.enters) {
      score_from[row.slot.slot] = std::max(1u, plan->new_sequences(entering++).score_from());
    }
    const uint32_t flags = plan->flags(static_cast<int>(r));
    EXPECT_EQ((flags & internal::ROW_SAMPLE) != 0, row.sample);
    EXPECT_EQ((flags & internal::ROW_SCORE) != 0, row.score);
    if (row.score) {
      internal::StepScores& scores = *result.add_scores();
      scores.set_slot(row.slot.slot);
      scores.set_slot_gen(row.slot.gen);
      scores.set_first(std::max(row.start + 1, score_from[row.slot.slot]));
      const uint32_t end = std::min(row.start + row.n_tokens + 1, row.sequence->n_prompt);
      for (uint32_t i = scores.first(); i < end; ++i) scores.add_logprob(-static_cast<float>(i));
    }
    if (row.sample) {
      internal::StepOutput& output = *result.add_outputs();
      output.set_slot(row.slot.slot);
      output.set_slot_gen(row.slot.gen);
      output.set_output_index(row.output_index);
      output.set_token(7);
    }
  }
  return result;
}

class PromptScores : public testing::Test {
 protected:
  std::vector<Commit> Run() {
    const StepSchedule step = scheduler_.Schedule();
    result_ = ResultOf(step, score_from_);
    std::vector<Commit> commits = scheduler_.CommitStep(result_);
    EXPECT_TRUE(scheduler_.CheckInvariants().ok()) << scheduler_.CheckInvariants();
    for (const Commit& commit : commits) {
      if (commit.kind == Commit::Kind::kToken) ++tokens_;
      if (commit.kind != Commit::Kind::kScores) continue;
      EXPECT_EQ(tokens_, 0) << "scores come before the first token";
      for (const float score : commit.scores->logprob()) scores_.push_back(score);
    }
    return commits;
  }
  void ExpectScores(uint32_t first, uint32_t end) {
    std::vector<float> expected;
    for (uint32_t i = first; i < end; ++i) expected.push_back(-static_cast<float>(i));
    EXPECT_EQ(scores_, expected);
  }

  Scheduler scheduler_;
  internal::StepResult result_;
  std::vector<uint32_t> score_from_;
  std::vector<float> scores_;
  int tokens_ = 0;
};

TEST_F(PromptScores, ComeInChunksThenTokensWithoutThem) {
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/8));
  scheduler_.Add(Spec(1, /*n_prompt=*/19, /*max_tokens=*/3, /*score_from=*/0));
  EXPECT_EQ(Run().size(), 1u);
  EXPECT_EQ(Run().size(), 1u);
  const std::vector<Commit> both = Run();
  ASSERT_EQ(both.size(), 2u) << "the last scores, and the first token";
  EXPECT_EQ(both[0].kind, Commit::Kind::kScores);
  EXPECT_EQ(both[1].kind, Commit::Kind::kToken);
  ExpectScores(1, 19);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Run().size(), 1u);
    EXPECT_EQ(result_.scores_size(), 0);
  }
  EXPECT_EQ(tokens_, 3);
}

TEST_F(PromptScores, AChunkOfTheLastPromptTokenAloneHasNothingToScore) {
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/6));
  scheduler_.Add(Spec(1, /*n_prompt=*/7, /*max_tokens=*/2, /*score_from=*/0));
  EXPECT_EQ(Run().size(), 1u);
  ExpectScores(1, 7);
  const std::vector<Commit> commits = Run();
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].kind, Commit::Kind::kToken);
  EXPECT_EQ(result_.scores_size(), 0);
}

TEST_F(PromptScores, APromptOfOneTokenHasNone) {
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/6));
  scheduler_.Add(Spec(1, /*n_prompt=*/1, /*max_tokens=*/2, /*score_from=*/0));
  Run();
  EXPECT_EQ(tokens_, 1);
  EXPECT_TRUE(scores_.empty());
}

TEST_F(PromptScores, WithTwoPlansOutAndALossInBetweenEachComesOnce) {
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/8));
  scheduler_.Add(Spec(1, /*n_prompt=*/19, /*max_tokens=*/4, /*score_from=*/0));
  Run();
  scheduler_.Schedule();  // lost with the group
  scheduler_.Schedule();
  scheduler_.EndEpoch();
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/8));
  while (tokens_ < 2) Run();
  ExpectScores(1, 19);
  // Lost again, when all of them have come: nothing is scored a second time.
  scheduler_.EndEpoch();
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/8));
  while (tokens_ < 4) {
    Run();
    EXPECT_EQ(result_.scores_size(), 0);
  }
  ExpectScores(1, 19);
}

TEST_F(PromptScores, AreComputedEvenIfThePrefixCacheHasThePrompt) {
  scheduler_.StartEpoch(Limits(/*blocks=*/20, /*budget=*/32, /*prefix_cache=*/true));
  scheduler_.Add(Spec(1, /*n_prompt=*/19, /*max_tokens=*/1, /*score_from=*/0));
  Run();
  scheduler_.Remove(1);
  scores_.clear();
  tokens_ = 0;
  scheduler_.Add(Spec(2, /*n_prompt=*/19, /*max_tokens=*/1, /*score_from=*/0));
  Run();
  ExpectScores(1, 19);
  scheduler_.Remove(2);
  // Only from a later token on: the blocks before it may come from the cache.
  scores_.clear();
  tokens_ = 0;
  scheduler_.Add(Spec(3, /*n_prompt=*/19, /*max_tokens=*/1, /*score_from=*/14));
  const StepSchedule step = scheduler_.Schedule();
  EXPECT_EQ(step.rows[0].start, 12u) << "token 14 needs the logits at 13";
  result_ = ResultOf(step, score_from_);
  EXPECT_EQ(result_.scores(0).first(), 14u);
  EXPECT_EQ(result_.scores(0).logprob_size(), 5);
  EXPECT_EQ(scheduler_.CommitStep(result_).size(), 2u);
}

TEST_F(PromptScores, ARowThatBringsOnlyHalfIsMissing) {
  for (const bool without_scores : {true, false}) {
    Scheduler scheduler;
    scheduler.StartEpoch(Limits(/*blocks=*/10, /*budget=*/32));
    scheduler.Add(Spec(1, /*n_prompt=*/9, /*max_tokens=*/2, /*score_from=*/0));
    const StepSchedule step = scheduler.Schedule();
    EXPECT_EQ(WriteStepPlan(step, {})->flags(0), kSampleAndScore);
    std::vector<uint32_t> score_from;
    internal::StepResult result = ResultOf(step, score_from);
    if (without_scores) {
      result.clear_scores();
    } else {
      result.clear_outputs();
    }
    const std::vector<Commit> commits = scheduler.CommitStep(result);
    ASSERT_EQ(commits.size(), without_scores ? 1u : 2u);
    EXPECT_EQ(commits.back().kind, Commit::Kind::kMissing);
  }
}

TEST_F(PromptScores, NonFiniteOnesEndTheSequenceOnce) {
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/32));
  scheduler_.Add(Spec(1, /*n_prompt=*/9, /*max_tokens=*/2, /*score_from=*/0));
  result_ = ResultOf(scheduler_.Schedule(), score_from_);
  result_.mutable_scores(0)->clear_logprob();
  result_.mutable_scores(0)->set_flags(internal::OUTPUT_NON_FINITE);
  result_.mutable_outputs(0)->set_flags(internal::OUTPUT_NON_FINITE);
  const std::vector<Commit> commits = scheduler_.CommitStep(result_);
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].kind, Commit::Kind::kNonFinite);
}

TEST_F(PromptScores, WhereNoTokenIsAllowedTheSequenceEnds) {
  scheduler_.StartEpoch(Limits(/*blocks=*/10, /*budget=*/32));
  scheduler_.Add(Spec(1, /*n_prompt=*/9, /*max_tokens=*/2, /*score_from=*/0));
  result_ = ResultOf(scheduler_.Schedule(), score_from_);
  result_.mutable_outputs(0)->set_flags(internal::OUTPUT_NO_TOKEN_ALLOWED);
  const std::vector<Commit> commits = scheduler_.CommitStep(result_);
  ASSERT_EQ(commits.size(), 2u);
  EXPECT_EQ(commits[1].kind, Commit::Kind::kNoneAllowed);
  EXPECT_EQ(commits[1].output_index, 0u);
}

}  // namespace
}  // namespace bitshard
