// The scheduler's rules one by one, on steps small enough to follow by hand, without the prefix
// cache (scheduler_prefix_test.cc). The random walk is in scheduler_property_test.cc.
#include "coordinator/schedule/scheduler.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/schedule/step_planner.h"

namespace bitshard {
namespace {

SequenceSpec Spec(SequenceId id, uint32_t n_prompt, uint32_t max_tokens, int32_t priority = 0) {
  SequenceSpec spec;
  spec.id = id;
  spec.priority = priority;
  for (uint32_t i = 0; i < n_prompt; ++i)
    spec.prompt.push_back(100 * static_cast<uint32_t>(id) + i);
  spec.max_tokens = max_tokens;
  spec.sampling.set_seed(id);
  return spec;
}

SchedulerLimits Limits(uint32_t blocks, uint32_t slots, uint32_t budget) {
  return {.total_blocks = blocks,
          .block_tokens = 4,
          .max_slots = slots,
          .token_budget = budget,
          .max_chunk = {},
          .prefix_cache = false};
}

internal::StepOutput* Answer(internal::StepResult& result, const ScheduledRow& row,
                             uint32_t token = 7) {
  internal::StepOutput* output = result.add_outputs();
  output->set_slot(row.slot.slot);
  output->set_slot_gen(row.slot.gen);
  output->set_output_index(row.output_index);
  output->set_token(token);
  return output;
}

// What the workers would send back for a step.
internal::StepResult ResultOf(const StepSchedule& step, uint32_t token = 7) {
  internal::StepResult result;
  for (const ScheduledRow& row : step.rows) {
    if (row.sample) Answer(result, row, token);
  }
  return result;
}

using Rows = std::vector<std::pair<SequenceId, uint32_t>>;  // id, n_tokens
Rows RowsOf(const StepSchedule& step) {
  Rows rows;
  for (const ScheduledRow& row : step.rows) rows.emplace_back(row.sequence->id, row.n_tokens);
  return rows;
}

// Runs one step to its end.
Rows RunStep(Scheduler& scheduler) {
  const StepSchedule step = scheduler.Schedule();
  const Rows rows = RowsOf(step);
  if (!rows.empty()) scheduler.CommitStep(ResultOf(step));
  EXPECT_TRUE(scheduler.CheckInvariants().ok()) << scheduler.CheckInvariants();
  return rows;
}

TEST(Scheduler, LongPromptIsCutIntoChunksOfTheBudget) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(/*blocks=*/10, /*slots=*/4, /*budget=*/8));
  scheduler.Add(Spec(1, /*n_prompt=*/19, /*max_tokens=*/3));
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 8}}));
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 8}}));
  EXPECT_EQ(scheduler.Get(1).outputs(), 0u);
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 3}}));
  EXPECT_EQ(scheduler.Get(1).outputs(), 1u);
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 1}}));
}

// So that no launch reads more than a budget of tokens at 32,768 positions, and none is hung.
TEST(Scheduler, FarIntoALongPromptChunksGetShorter) {
  constexpr uint32_t kBudget = 256, kPrompt = 70'000;
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(/*blocks=*/kPrompt / 4 + 1, /*slots=*/2, kBudget));
  scheduler.Add(Spec(1, kPrompt, /*max_tokens=*/2));
  for (uint32_t done = 0; done < kPrompt;) {
    const Rows rows = RunStep(scheduler);
    ASSERT_EQ(rows.size(), 1u);
    const uint32_t n = rows[0].second;
    ASSERT_LE(StepLoad::ContextOf(done, n), uint64_t{kBudget} * 32768) << done;
    const uint32_t whole = std::min(kBudget, kPrompt - done);
    ASSERT_GE(n, done + kBudget <= 32768 ? whole : std::min(whole, kBudget / 4)) << done;
    done += n;
  }
  EXPECT_EQ(scheduler.Get(1).outputs(), 1u);
}

TEST(Scheduler, MaxChunkLimitsOneSequenceButNotTheStep) {
  Scheduler scheduler;
  SchedulerLimits limits = Limits(20, 4, 100);
  limits.max_chunk = 3;
  scheduler.StartEpoch(limits);
  scheduler.Add(Spec(1, 7, 1));
  scheduler.Add(Spec(2, 4, 1));
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 3}, {2, 3}}));
  EXPECT_EQ(RunStep(scheduler), (Rows{{2, 1}, {1, 3}}));  // what lacks one token goes first
}

TEST(Scheduler, OnlyAsMuchEntersInAStepAsAMessageHolds) {
  Scheduler scheduler;
  SchedulerLimits limits = Limits(/*blocks=*/40, /*slots=*/8, /*budget=*/100);
  limits.max_entering_bytes = 2 * EnteringBytes(Sequence(Spec(1, 8, 2)), limits.block_tokens);
  scheduler.StartEpoch(limits);
  for (SequenceId id = 1; id <= 5; ++id) scheduler.Add(Spec(id, 8, 2));
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 8}, {2, 8}}));
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 1}, {2, 1}, {3, 8}, {4, 8}}));
  const Sequence large(Spec(6, 30, 1));
  ASSERT_GT(EnteringBytes(large, limits.block_tokens), limits.max_entering_bytes);
  scheduler.Add(Spec(6, 30, 1));
  EXPECT_EQ(RunStep(scheduler), (Rows{{3, 1}, {4, 1}, {5, 8}}));
  EXPECT_EQ(RunStep(scheduler), (Rows{{5, 1}, {6, 30}})) << "alone it may be larger";
}

TEST(Scheduler, BudgetGoesToDecodesThenChunksThenWaiting) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(40, 4, 8));
  scheduler.Add(Spec(1, 12, 4));
  scheduler.Add(Spec(2, 2, 4));
  scheduler.Add(Spec(3, 6, 4));
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 8}}));
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 4}, {2, 2}, {3, 2}}));
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 1}, {2, 1}, {3, 4}}));
}

TEST(Scheduler, LowerPriorityNumberIsServedFirst) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(40, 1, 8));
  scheduler.Add(Spec(1, 2, 1, /*priority=*/5));
  scheduler.Add(Spec(2, 2, 1, /*priority=*/-1));
  scheduler.Add(Spec(3, 2, 1, /*priority=*/5));
  EXPECT_EQ(RunStep(scheduler), (Rows{{2, 2}}));
  scheduler.Remove(2);
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 2}}));
  scheduler.Remove(1);
  EXPECT_EQ(RunStep(scheduler), (Rows{{3, 2}}));
}

TEST(Scheduler, LastComeIsPreemptedAndRecomputedWithItsCommittedTokens) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(/*blocks=*/4, 4, 16));
  scheduler.Add(Spec(1, 4, 9));
  scheduler.Add(Spec(2, 4, 9));
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 4}, {2, 4}}));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(RunStep(scheduler), (Rows{{1, 1}, {2, 1}}));
  // Both want a third block, and none is left.
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 1}}));
  EXPECT_EQ(scheduler.Get(2).preemptions, 1u);
  EXPECT_EQ(scheduler.Get(2).outputs(), 5u);
  EXPECT_FALSE(scheduler.Get(2).slot.has_value());
  scheduler.Remove(1);
  const StepSchedule step = scheduler.Schedule();
  EXPECT_EQ(RowsOf(step), (Rows{{2, 9}}));
  EXPECT_FALSE(step.rows[0].first_time);
  const auto plan = WriteStepPlan(step, {.term = 3, .epoch = 4, .step = 9});
  ASSERT_EQ(plan->new_sequences_size(), 1);
  EXPECT_EQ(plan->new_sequences(0).tokens_size(), 9);
  EXPECT_EQ(plan->new_sequences(0).n_prompt(), 4u);
  EXPECT_EQ(plan->output_index(0), 5u);
}

TEST(Scheduler, HeadOfTheQueueIsNotPassedByASmallerRequest) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(/*blocks=*/6, 4, 64));
  scheduler.Add(Spec(1, 12, 4));
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 12}}));
  scheduler.Add(Spec(2, 16, 4));
  scheduler.Add(Spec(3, 1, 4));
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 1}}));
  scheduler.Remove(1);
  EXPECT_EQ(RunStep(scheduler), (Rows{{2, 16}, {3, 1}}));
}

TEST(Scheduler, WaitingSequenceLeavesRoomForThePromptsThatAreUnderWay) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(/*blocks=*/8, 4, /*budget=*/8));
  scheduler.Add(Spec(1, 24, 4));  // 6 blocks, 2 of them in the first step
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 8}}));
  scheduler.Add(Spec(2, 12, 4));  // 3 blocks: fits now, but not beside what 1 still needs
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 8}}));
  EXPECT_EQ(scheduler.preemptions(), 0u);
}

TEST(Scheduler, SequenceThatEntersTravelsWholeAndThenAsADelta) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(10, 2, 6));
  scheduler.Add(Spec(1, 8, 2));
  const StepSchedule first = scheduler.Schedule();
  const auto entry = WriteStepPlan(first, {.term = 1, .epoch = 2, .step = 1});
  ASSERT_EQ(entry->new_sequences_size(), 1);
  EXPECT_EQ(entry->new_sequences(0).tokens_size(), 8);
  EXPECT_EQ(entry->new_sequences(0).blocks_size(), 2);
  EXPECT_EQ(entry->new_sequences(0).sampling().seed(), 1u);
  EXPECT_EQ(entry->n_new_blocks(0), 0u);
  EXPECT_EQ(entry->flags(0), 0u);
  scheduler.CommitStep(ResultOf(first));
  const StepSchedule second = scheduler.Schedule();
  const auto delta = WriteStepPlan(second, {.term = 1, .epoch = 2, .step = 2});
  EXPECT_EQ(delta->new_sequences_size(), 0);
  EXPECT_EQ(delta->start(0), 6u);
  EXPECT_EQ(delta->n_tokens(0), 2u);
  EXPECT_EQ(delta->flags(0), static_cast<uint32_t>(internal::ROW_SAMPLE));
  EXPECT_EQ(delta->n_new_blocks(0), 0u);
}

TEST(Scheduler, OutputOfAnotherGenerationIsDropped) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(10, 1, 8));
  scheduler.Add(Spec(1, 2, 4));
  const StepSchedule step = scheduler.Schedule();
  internal::StepResult result = ResultOf(step);
  result.mutable_outputs(0)->set_slot_gen(99);
  const std::vector<Commit> commits = scheduler.CommitStep(result);
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].kind, Commit::Kind::kMissing);
  EXPECT_EQ(scheduler.stale_outputs(), 1u);
  EXPECT_EQ(scheduler.Get(1).outputs(), 0u);
}

TEST(Scheduler, OutputThatIsNotTheNextOneIsDropped) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(10, 1, 8));
  scheduler.Add(Spec(1, 2, 4));
  const StepSchedule step = scheduler.Schedule();
  internal::StepResult result = ResultOf(step);
  result.mutable_outputs(0)->set_output_index(1);
  EXPECT_EQ(scheduler.CommitStep(result)[0].kind, Commit::Kind::kMissing);
}

TEST(Scheduler, SecondOutputForARowIsDropped) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(10, 1, 8));
  scheduler.Add(Spec(1, 2, 4));
  const StepSchedule step = scheduler.Schedule();
  internal::StepResult result = ResultOf(step);
  *result.add_outputs() = result.outputs(0);
  result.mutable_outputs(1)->set_output_index(1);
  EXPECT_EQ(scheduler.CommitStep(result).size(), 1u);
  EXPECT_EQ(scheduler.Get(1).outputs(), 1u);
  EXPECT_EQ(scheduler.stale_outputs(), 1u);
}

TEST(Scheduler, OutputOfARemovedSequenceIsDroppedAlsoWhenItsSlotHasANewOwner) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(10, 1, 8));
  scheduler.Add(Spec(1, 2, 4));
  scheduler.Add(Spec(2, 2, 4));
  const StepSchedule first = scheduler.Schedule();
  const internal::StepResult late = ResultOf(first, /*token=*/11);
  scheduler.Remove(1);
  const StepSchedule second = scheduler.Schedule();  // two plans are out now
  ASSERT_EQ(RowsOf(second), (Rows{{2, 2}}));
  EXPECT_EQ(second.rows[0].slot.slot, first.rows[0].slot.slot);
  const internal::StepResult result = ResultOf(second, /*token=*/12);
  EXPECT_TRUE(scheduler.CommitStep(late).empty());
  ASSERT_EQ(scheduler.CommitStep(result).size(), 1u);
  EXPECT_EQ(scheduler.Get(2).tokens.back(), 12u);
  EXPECT_TRUE(scheduler.CheckInvariants().ok()) << scheduler.CheckInvariants();
}

TEST(Scheduler, TokensInFlightCountAgainstMaxTokens) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(10, 1, 8));
  scheduler.Add(Spec(1, 2, 2));
  const StepSchedule first = scheduler.Schedule();
  const internal::StepResult first_result = ResultOf(first);
  const StepSchedule second = scheduler.Schedule();
  ASSERT_EQ(RowsOf(second), (Rows{{1, 1}}));
  EXPECT_EQ(second.rows[0].output_index, 1u);
  const internal::StepResult second_result = ResultOf(second);
  EXPECT_TRUE(scheduler.Schedule().rows.empty());
  EXPECT_EQ(scheduler.CommitStep(first_result).size(), 1u);
  EXPECT_EQ(scheduler.CommitStep(second_result).size(), 1u);
  EXPECT_EQ(scheduler.Get(1).outputs(), 2u);
}

TEST(Scheduler, NonFiniteOutputIsReportedAndQuarantineTakesTheBlocksAway) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(10, 2, 16));
  scheduler.Add(Spec(1, 6, 4));
  scheduler.Add(Spec(2, 2, 4));
  const StepSchedule step = scheduler.Schedule();
  internal::StepResult result = ResultOf(step);
  result.mutable_outputs(0)->set_flags(internal::OUTPUT_NON_FINITE);
  const std::vector<Commit> commits = scheduler.CommitStep(result);
  ASSERT_EQ(commits.size(), 2u);
  EXPECT_EQ(commits[0].kind, Commit::Kind::kNonFinite);
  EXPECT_EQ(commits[1].kind, Commit::Kind::kToken);
  scheduler.Quarantine(1);
  EXPECT_EQ(scheduler.blocks().quarantined(), 2u);
  EXPECT_EQ(scheduler.max_sequence_tokens(), 8u * 4 + 1);
  EXPECT_TRUE(scheduler.CheckInvariants().ok()) << scheduler.CheckInvariants();
}

TEST(Scheduler, SequencesThatQuarantineMadeImpossibleAreHandedBackAsUnfit) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(/*blocks=*/4, 2, 16));
  scheduler.Add(Spec(1, 4, 13));  // 4 blocks at its end
  RunStep(scheduler);
  scheduler.Add(Spec(2, 4, 2));
  RunStep(scheduler);
  scheduler.Add(Spec(3, 16, 1));
  scheduler.Quarantine(2);
  std::vector<SequenceId> unfit;
  for (int step = 0; step < 20 && scheduler.running() + scheduler.waiting() > 0; ++step) {
    const StepSchedule schedule = scheduler.Schedule();
    unfit.insert(unfit.end(), schedule.unfit.begin(), schedule.unfit.end());
    if (!schedule.rows.empty()) scheduler.CommitStep(ResultOf(schedule));
  }
  EXPECT_EQ(unfit, (std::vector<SequenceId>{3, 1}));
  EXPECT_EQ(scheduler.blocks().used(), 0u);
}

TEST(Scheduler, WaitingOnesComeInThoughTheStepPreemptedWhenItsLastRunningOneIsUnfit) {
  Scheduler scheduler;
  SchedulerLimits limits = Limits(/*blocks=*/11, /*slots=*/4, /*budget=*/32);
  limits.max_chunk = 8;
  scheduler.StartEpoch(limits);
  scheduler.Add(Spec(1, 32, 1));  // 8 blocks, 2 a step
  scheduler.Add(Spec(2, 3, 5));
  scheduler.Add(Spec(3, 3, 5));
  scheduler.Add(Spec(4, 1, 8));
  EXPECT_EQ(RunStep(scheduler), (Rows{{1, 8}, {2, 3}, {3, 3}, {4, 1}}));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(RunStep(scheduler), (Rows{{2, 1}, {3, 1}, {4, 1}, {1, 8}}));
  // 2 and 3 have taken second blocks that 1 will want.
  ASSERT_EQ(scheduler.blocks().free(), 0u);
  scheduler.Quarantine(2);
  scheduler.Quarantine(3);
  scheduler.Add(Spec(5, 3, 2));
  // 1 wants two blocks: 4 is preempted for it and has only one, so 1 can never go on.
  const StepSchedule step = scheduler.Schedule();
  EXPECT_EQ(step.preempted, 1u);
  EXPECT_EQ(step.unfit, (std::vector<SequenceId>{1}));
  EXPECT_EQ(RowsOf(step), (Rows{{4, 4}, {5, 3}}));
  EXPECT_EQ(scheduler.CommitStep(ResultOf(step)).size(), 2u);
  EXPECT_TRUE(scheduler.CheckInvariants().ok()) << scheduler.CheckInvariants();
}

TEST(Scheduler, EndOfAnEpochKeepsCommittedTokensAndRecomputesThem) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(10, 2, 16));
  scheduler.Add(Spec(1, 3, 4));
  RunStep(scheduler);
  RunStep(scheduler);
  const uint32_t gen = scheduler.Get(1).slot->gen;
  scheduler.Schedule();  // in flight when the group is lost
  scheduler.EndEpoch();
  EXPECT_TRUE(scheduler.CheckInvariants().ok()) << scheduler.CheckInvariants();
  EXPECT_EQ(scheduler.Get(1).outputs(), 2u);
  EXPECT_EQ(scheduler.waiting(), 1u);
  scheduler.StartEpoch(Limits(10, 2, 16));
  const StepSchedule step = scheduler.Schedule();
  EXPECT_EQ(RowsOf(step), (Rows{{1, 5}}));
  EXPECT_GT(step.rows[0].slot.gen, gen);
  EXPECT_EQ(step.rows[0].output_index, 2u);
}

TEST(Scheduler, EmptyStepIsPlannedOnlyOnRequest) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(10, 2, 16));
  EXPECT_TRUE(scheduler.Schedule().rows.empty());
  EXPECT_EQ(scheduler.steps_in_flight(), 0u);
  scheduler.Schedule(/*allow_empty=*/true);
  EXPECT_EQ(scheduler.steps_in_flight(), 1u);
  EXPECT_TRUE(scheduler.CommitStep(internal::StepResult()).empty());
}

// What the workers send back for rows that score: the tokens after each row's own.
internal::StepResult ScoresOf(const StepSchedule& step) {
  internal::StepResult result;
  for (const ScheduledRow& row : step.rows) {
    if (!row.score) continue;
    internal::StepScores& scores = *result.add_scores();
    scores.set_slot(row.slot.slot);
    scores.set_slot_gen(row.slot.gen);
    const uint32_t known = static_cast<uint32_t>(row.sequence->tokens.size());
    const uint32_t first = std::max(row.start + 1, row.sequence->next_score);
    scores.set_first(first);
    for (uint32_t t = first; t < std::min(row.start + row.n_tokens + 1, known); ++t)
      scores.add_logprob(-static_cast<float>(t));
  }
  return result;
}

SequenceSpec ScoreSpec(SequenceId id, uint32_t n_tokens, uint32_t score_from) {
  SequenceSpec spec = Spec(id, n_tokens, /*max_tokens=*/0);
  spec.score_from = score_from;
  return spec;
}

TEST(SchedulerScores, EveryTokenButTheFirstIsScoredOnceInChunksOfTheBudget) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(/*blocks=*/10, /*slots=*/4, /*budget=*/8));
  scheduler.Add(ScoreSpec(1, /*n_tokens=*/19, /*score_from=*/0));
  std::vector<float> scores;
  bool last = false;
  for (const uint32_t n : {8u, 8u, 3u}) {
    EXPECT_FALSE(last);
    const StepSchedule step = scheduler.Schedule();
    ASSERT_EQ(RowsOf(step), (Rows{{1, n}}));
    EXPECT_TRUE(step.rows[0].score);
    EXPECT_FALSE(step.rows[0].sample);
    const auto plan = WriteStepPlan(step, {});
    EXPECT_EQ(plan->flags(0), static_cast<uint32_t>(internal::ROW_SCORE));
    if (step.rows[0].enters) {
      EXPECT_EQ(plan->new_sequences(0).score_from(), 1u);
    }
    const internal::StepResult result = ScoresOf(step);
    const std::vector<Commit> commits = scheduler.CommitStep(result);
    ASSERT_EQ(commits.size(), 1u);
    EXPECT_EQ(commits[0].kind, Commit::Kind::kScores);
    for (const float score : commits[0].scores->logprob()) scores.push_back(score);
    last = commits[0].last;
    EXPECT_TRUE(scheduler.CheckInvariants().ok()) << scheduler.CheckInvariants();
  }
  EXPECT_TRUE(last);
  ASSERT_EQ(scores.size(), 18u);
  for (size_t i = 0; i < scores.size(); ++i) EXPECT_EQ(scores[i], -static_cast<float>(i + 1));
  EXPECT_TRUE(scheduler.Schedule().rows.empty()) << "nothing is left to compute";
}

TEST(SchedulerScores, OneTokenHasNothingToScoreAndStillEnds) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(/*blocks=*/10, /*slots=*/4, /*budget=*/8));
  scheduler.Add(ScoreSpec(1, /*n_tokens=*/1, /*score_from=*/0));
  const internal::StepResult result = ScoresOf(scheduler.Schedule());
  const std::vector<Commit> commits = scheduler.CommitStep(result);
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].kind, Commit::Kind::kScores);
  EXPECT_TRUE(commits[0].last);
}

TEST(SchedulerScores, AfterALossScoringGoesOnWhereItsCommitsEnd) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(/*blocks=*/10, /*slots=*/4, /*budget=*/8));
  scheduler.Add(ScoreSpec(1, /*n_tokens=*/19, /*score_from=*/3));
  StepSchedule step = scheduler.Schedule();
  internal::StepResult result = ScoresOf(step);
  EXPECT_EQ(result.scores(0).first(), 3u);
  EXPECT_EQ(result.scores(0).logprob_size(), 6);
  scheduler.CommitStep(result);
  scheduler.Schedule();  // its result is lost with the group
  scheduler.EndEpoch();
  scheduler.StartEpoch(Limits(/*blocks=*/10, /*slots=*/4, /*budget=*/16));
  step = scheduler.Schedule();
  ASSERT_EQ(RowsOf(step), (Rows{{1, 16}}));
  EXPECT_EQ(WriteStepPlan(step, {})->new_sequences(0).score_from(), 9u);
  result = ScoresOf(step);
  EXPECT_EQ(result.scores(0).first(), 9u);
  const std::vector<Commit> commits = scheduler.CommitStep(result);
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].scores->logprob_size(), 8);
  EXPECT_FALSE(commits[0].last);
}

TEST(SchedulerScores, ScoresThatDoNotGoOnWhereTheLastEndedAreDropped) {
  for (const int wrong : {0, 1, 2}) {
    Scheduler scheduler;
    scheduler.StartEpoch(Limits(/*blocks=*/10, /*slots=*/4, /*budget=*/8));
    scheduler.Add(ScoreSpec(1, /*n_tokens=*/19, /*score_from=*/0));
    internal::StepResult result = ScoresOf(scheduler.Schedule());
    if (wrong == 0) result.mutable_scores(0)->set_first(2);
    if (wrong == 1) result.mutable_scores(0)->add_logprob(0);
    if (wrong == 2) result.clear_scores();
    const std::vector<Commit> commits = scheduler.CommitStep(result);
    ASSERT_EQ(commits.size(), 1u) << wrong;
    EXPECT_EQ(commits[0].kind, Commit::Kind::kMissing) << wrong;
    EXPECT_EQ(scheduler.stale_outputs(), wrong == 2 ? 0u : 1u);
  }
}

TEST(SchedulerScores, NonFiniteScoresAreTheCallersToQuarantine) {
  Scheduler scheduler;
  scheduler.StartEpoch(Limits(/*blocks=*/10, /*slots=*/4, /*budget=*/8));
  scheduler.Add(ScoreSpec(1, /*n_tokens=*/9, /*score_from=*/0));
  internal::StepResult result = ScoresOf(scheduler.Schedule());
  result.mutable_scores(0)->clear_logprob();
  result.mutable_scores(0)->set_flags(internal::OUTPUT_NON_FINITE);
  const std::vector<Commit> commits = scheduler.CommitStep(result);
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].kind, Commit::Kind::kNonFinite);
}

}  // namespace
}  // namespace bitshard
