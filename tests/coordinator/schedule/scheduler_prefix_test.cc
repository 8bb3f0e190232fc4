// The scheduler with its prefix cache, rule by rule. What the cache does by itself is in
// prefix_cache_test.cc, the random walk in scheduler_property_test.cc.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/schedule/scheduler.h"
#include "coordinator/schedule/step_planner.h"

namespace bitshard {
namespace {

constexpr uint32_t kFiller = 7;  // what the workers sample

// `prompt` repeated letters become token ids.
SequenceSpec Spec(SequenceId id, const std::string& prompt, uint32_t max_tokens,
                  const std::string& seed = "") {
  SequenceSpec spec;
  spec.id = id;
  for (char c : prompt) spec.prompt.push_back(static_cast<uint32_t>(c));
  spec.max_tokens = max_tokens;
  spec.cache_seed = seed;
  return spec;
}

class SchedulerPrefix : public testing::Test {
 protected:
  void Start(uint32_t blocks, uint32_t budget = 64, bool prefix_cache = true) {
    scheduler_.StartEpoch({.total_blocks = blocks,
                           .block_tokens = 4,
                           .max_slots = 4,
                           .token_budget = budget,
                           .max_chunk = {},
                           .prefix_cache = prefix_cache});
  }

  internal::StepResult ResultOf(const StepSchedule& step, uint32_t flags = 0) {
    internal::StepResult result;
    for (const ScheduledRow& row : step.rows) {
      if (!row.sample) continue;
      internal::StepOutput* output = result.add_outputs();
      output->set_slot(row.slot.slot);
      output->set_slot_gen(row.slot.gen);
      output->set_output_index(row.output_index);
      output->set_token(kFiller);
      output->set_flags(flags);
    }
    return result;
  }

  struct Row {
    SequenceId id;
    uint32_t start, n_tokens;
    friend bool operator==(const Row&, const Row&) = default;
    friend void PrintTo(const Row& row, std::ostream* out) {
      *out << row.id << ": [" << row.start << ", +" << row.n_tokens << ")";
    }
  };
  using Rows = std::vector<Row>;
  static Rows RowsOf(const StepSchedule& step) {
    Rows rows;
    for (const ScheduledRow& row : step.rows)
      rows.push_back({row.sequence->id, row.start, row.n_tokens});
    return rows;
  }

  // One step to its end.
  Rows Step() {
    const StepSchedule step = scheduler_.Schedule();
    const Rows rows = RowsOf(step);
    if (!rows.empty()) scheduler_.CommitStep(ResultOf(step));
    Check();
    return rows;
  }
  // The sequence alone to its last output, then it is over.
  void Finish(SequenceId id) {
    while (scheduler_.Get(id).outputs() < scheduler_.Get(id).max_tokens) Step();
    scheduler_.Remove(id);
    Check();
  }
  void Check() {
    const absl::Status status = scheduler_.CheckInvariants();
    ASSERT_TRUE(status.ok()) << status;
  }

  Scheduler scheduler_;
};

TEST_F(SchedulerPrefix, SecondPromptIsComputedFromWhereItDiffers) {
  Start(/*blocks=*/10);
  scheduler_.Add(Spec(1, "aaaabbbbcc", 1));
  EXPECT_EQ(Step(), (Rows{{1, 0, 10}}));
  const std::vector<BlockId> first = scheduler_.Get(1).blocks;
  scheduler_.Remove(1);
  EXPECT_EQ(scheduler_.blocks().cached(), 2u) << "the third block is not full";
  EXPECT_EQ(scheduler_.blocks().used(), 0u);

  scheduler_.Add(Spec(2, "aaaabbbbdddd", 1));
  const StepSchedule step = scheduler_.Schedule();
  ASSERT_EQ(RowsOf(step), (Rows{{2, 8, 4}}));
  EXPECT_TRUE(step.rows[0].sample);
  const auto plan = WriteStepPlan(step, {.term = 1, .epoch = 1, .step = 2});
  ASSERT_EQ(plan->new_sequences_size(), 1);
  EXPECT_EQ(plan->new_sequences(0).cached_tokens(), 8u);
  EXPECT_EQ(plan->new_sequences(0).tokens_size(), 12);
  ASSERT_EQ(plan->new_sequences(0).blocks_size(), 3);
  EXPECT_EQ(plan->new_sequences(0).blocks(0), first[0]);
  EXPECT_EQ(plan->new_sequences(0).blocks(1), first[1]);
  EXPECT_EQ(plan->start(0), 8u);
  EXPECT_EQ(plan->n_new_blocks(0), 0u);
  EXPECT_EQ(scheduler_.prefix_queries(), 10u + 12);
  EXPECT_EQ(scheduler_.prefix_hits(), 8u);
}

TEST_F(SchedulerPrefix, LastTokenIsAlwaysComputed) {
  Start(10);
  scheduler_.Add(Spec(1, "aaaabbbb", 1));
  Finish(1);
  scheduler_.Add(Spec(2, "aaaabbbb", 1));
  EXPECT_EQ(Step(), (Rows{{2, 4, 4}}));
  scheduler_.Remove(2);
  scheduler_.Add(Spec(3, "aaaabbbbc", 1));
  EXPECT_EQ(Step(), (Rows{{3, 8, 1}}));
  scheduler_.Remove(3);
  scheduler_.Add(Spec(4, "a", 1));
  EXPECT_EQ(Step(), (Rows{{4, 0, 1}}));
}

TEST_F(SchedulerPrefix, RunningSequencesShareFromTheNextPlanOn) {
  Start(10);
  scheduler_.Add(Spec(1, "aaaabbbbc", 4));
  scheduler_.Add(Spec(2, "aaaabbbbd", 4));
  const StepSchedule first = scheduler_.Schedule();
  // In one step no row can read what another one writes.
  EXPECT_EQ(RowsOf(first), (Rows{{1, 0, 9}, {2, 0, 9}}));
  scheduler_.Add(Spec(3, "aaaabbbbe", 4));
  const StepSchedule second = scheduler_.Schedule();  // the first one is still out
  EXPECT_EQ(RowsOf(second), (Rows{{1, 9, 1}, {2, 9, 1}, {3, 8, 1}}));
  EXPECT_EQ(scheduler_.Get(3).blocks[0], scheduler_.Get(1).blocks[0]);
  EXPECT_EQ(scheduler_.blocks().refcount(scheduler_.Get(1).blocks[1]), 2u);
  EXPECT_EQ(scheduler_.blocks().used(), 3u + 3 + 1);
  Check();
  scheduler_.CommitStep(ResultOf(first));
  scheduler_.CommitStep(ResultOf(second));
  for (SequenceId id : {1, 2, 3}) scheduler_.Remove(id);
  EXPECT_EQ(scheduler_.blocks().used(), 0u);
  Check();
}

TEST_F(SchedulerPrefix, NextTurnFindsPromptAndAnswerButNothingUncommitted) {
  Start(10);
  scheduler_.Add(Spec(1, "aaaab", 20));
  EXPECT_EQ(Step(), (Rows{{1, 0, 5}}));
  for (int i = 0; i < 2; ++i) Step();              // b777 is known, b77 is computed
  const StepSchedule out = scheduler_.Schedule();  // computes the third 7; its result is not back
  ASSERT_EQ(RowsOf(out), (Rows{{1, 7, 1}}));
  const StepSchedule ahead = scheduler_.Schedule();  // a token in flight: in a block of its own
  ASSERT_EQ(RowsOf(ahead), (Rows{{1, 8, 1}}));
  scheduler_.Add(Spec(2, "aaaab\x07\x07\x07\x07z", 1));
  const StepSchedule turn = scheduler_.Schedule();
  EXPECT_EQ(RowsOf(turn), (Rows{{1, 9, 1}, {2, 8, 2}}));
  Check();
}

TEST_F(SchedulerPrefix, TokensInFlightAreNotLookedUp) {
  Start(10);
  scheduler_.Add(Spec(1, "aaa", 20));
  const StepSchedule first = scheduler_.Schedule();   // samples token 3
  const StepSchedule second = scheduler_.Schedule();  // computes it: block 0 is full, not committed
  ASSERT_EQ(RowsOf(second), (Rows{{1, 3, 1}}));
  scheduler_.Add(Spec(2, "aaa\x07zz", 1));
  const StepSchedule third = scheduler_.Schedule();
  EXPECT_EQ(RowsOf(third), (Rows{{1, 4, 1}, {2, 0, 6}}));
  scheduler_.CommitStep(ResultOf(first));
  scheduler_.Add(Spec(3, "aaa\x07zz", 1));
  EXPECT_EQ(RowsOf(scheduler_.Schedule()), (Rows{{1, 5, 1}, {3, 4, 2}}));
  Check();
}

TEST_F(SchedulerPrefix, AnotherSeedFindsNothing) {
  Start(10);
  scheduler_.Add(Spec(1, "aaaabbbbc", 1, "model-salt"));
  Finish(1);
  scheduler_.Add(Spec(2, "aaaabbbbc", 1, "model-other"));
  EXPECT_EQ(Step(), (Rows{{2, 0, 9}}));
  scheduler_.Remove(2);
  scheduler_.Add(Spec(3, "aaaabbbbc", 1, "model-salt"));
  EXPECT_EQ(Step(), (Rows{{3, 8, 1}}));
}

TEST_F(SchedulerPrefix, CachedBlocksCountAsFreeForAdmissionAndGoTailFirst) {
  Start(/*blocks=*/4);
  scheduler_.Add(Spec(1, "aaaabbbbccccd", 1));
  Finish(1);
  EXPECT_EQ(scheduler_.blocks().cached(), 3u);
  scheduler_.Add(Spec(2, "eeeeffff", 1));
  EXPECT_EQ(Step(), (Rows{{2, 0, 8}}));
  scheduler_.Remove(2);
  EXPECT_EQ(scheduler_.prefix_evictions(), 1u);
  scheduler_.Add(Spec(3, "aaaabbbbccccd", 1));
  EXPECT_EQ(Step(), (Rows{{3, 8, 5}})) << "cccc was evicted, aaaa and bbbb were not";
}

TEST_F(SchedulerPrefix, HitsOfRunningSequencesLeaveRoomForMore) {
  Start(/*blocks=*/5);
  scheduler_.Add(Spec(1, "aaaabbbbccccd", 2));  // 4 blocks
  EXPECT_EQ(Step(), (Rows{{1, 0, 13}}));
  scheduler_.Add(Spec(2, "aaaabbbbcccce", 2));  // 4 blocks too, 3 of them there
  EXPECT_EQ(Step(), (Rows{{1, 13, 1}, {2, 12, 1}}));
  EXPECT_EQ(scheduler_.preemptions(), 0u);
}

TEST_F(SchedulerPrefix, PreemptedSequenceFindsItsOwnBlocksAgain) {
  Start(/*blocks=*/5, /*budget=*/16);
  // Two that grow until one must go.
  scheduler_.Add(Spec(4, "cccccccc", 5));
  scheduler_.Add(Spec(5, "dddddddd", 5));
  EXPECT_EQ(Step(), (Rows{{4, 0, 8}, {5, 0, 8}}));
  EXPECT_EQ(Step(), (Rows{{4, 8, 1}}));
  EXPECT_EQ(scheduler_.Get(5).preemptions, 1u);
  Finish(4);
  const StepSchedule step = scheduler_.Schedule();
  ASSERT_EQ(RowsOf(step), (Rows{{5, 8, 1}})) << "its own prompt is still there";
  EXPECT_FALSE(step.rows[0].first_time);
  EXPECT_EQ(WriteStepPlan(step, {})->new_sequences(0).cached_tokens(), 8u);
}

TEST_F(SchedulerPrefix, ScoredTokensAreComputedAgain) {
  Start(10);
  scheduler_.Add(Spec(1, "aaaabbbbccccd", 1));
  Finish(1);
  for (const auto& [score_from, start] : std::vector<std::pair<uint32_t, uint32_t>>{
           {0, 0}, {4, 0}, {5, 4}, {8, 4}, {9, 8}, {13, 12}}) {
    static SequenceId id = 1;
    SequenceSpec spec = Spec(++id, "aaaabbbbccccd", 0);
    spec.score_from = score_from;
    scheduler_.Add(std::move(spec));
    const StepSchedule step = scheduler_.Schedule();
    // Token t needs the logits after token t - 1.
    EXPECT_EQ(RowsOf(step), (Rows{{id, start, 13 - start}})) << "from " << score_from;
    scheduler_.CommitStep(internal::StepResult());
    scheduler_.Remove(id);
    Check();
  }
}

TEST_F(SchedulerPrefix, QuarantineTakesOutWhatSharesItsBlocks) {
  Start(12);
  scheduler_.Add(Spec(1, "aaaabbbbc", 4));
  Step();
  scheduler_.Add(Spec(2, "aaaabbbbdddde", 4));
  scheduler_.Add(Spec(3, "xxxxy", 4));
  const StepSchedule step = scheduler_.Schedule();
  ASSERT_EQ(RowsOf(step), (Rows{{1, 9, 1}, {2, 8, 5}, {3, 0, 5}}));
  const StepSchedule ahead = scheduler_.Schedule();
  internal::StepResult result = ResultOf(step);
  result.mutable_outputs(0)->set_flags(internal::OUTPUT_NON_FINITE);
  EXPECT_EQ(scheduler_.CommitStep(result).size(), 3u);
  scheduler_.Quarantine(1);
  Check();
  EXPECT_EQ(scheduler_.blocks().quarantined(), 1u) << "two of its three blocks are still in use";
  EXPECT_EQ(scheduler_.blocks().condemned(), 2u);
  // What 2 has in flight may come from them.
  const std::vector<Commit> commits = scheduler_.CommitStep(ResultOf(ahead));
  ASSERT_EQ(commits.size(), 1u);
  EXPECT_EQ(commits[0].id, 3u);
  EXPECT_EQ(scheduler_.blocks().quarantined(), 3u);
  const StepSchedule next = scheduler_.Schedule();
  EXPECT_EQ(RowsOf(next), (Rows{{3, 6, 1}, {2, 0, 14}})) << "and nothing of it is found again";
  EXPECT_EQ(next.preempted, 1u);
  EXPECT_EQ(scheduler_.preemptions(), 1u);
  scheduler_.CommitStep(ResultOf(next));
  Check();
}

TEST_F(SchedulerPrefix, SharedBlocksStayOutOfUseThoughTheQuarantinedRequestOnlyReadThem) {
  Start(12);
  scheduler_.Add(Spec(1, "aaaabbbbc", 1));
  Finish(1);
  scheduler_.Add(Spec(2, "aaaabbbbd", 1));
  const StepSchedule step = scheduler_.Schedule();
  ASSERT_EQ(RowsOf(step), (Rows{{2, 8, 1}}));
  scheduler_.CommitStep(ResultOf(step, internal::OUTPUT_NON_FINITE));
  scheduler_.Quarantine(2);
  EXPECT_EQ(scheduler_.blocks().quarantined(), 3u);
  EXPECT_EQ(scheduler_.blocks().cached(), 0u);
  scheduler_.Add(Spec(3, "aaaabbbbc", 1));
  EXPECT_EQ(Step(), (Rows{{3, 0, 9}}));
}

TEST_F(SchedulerPrefix, NonFiniteResultOfARemovedSequenceTakesItsBlocksOutOfTheCache) {
  for (const bool chunk : {false, true}) {
    SCOPED_TRACE(chunk ? "a chunk that samples nothing" : "a row that samples");
    Scheduler scheduler;
    scheduler.StartEpoch({.total_blocks = 12,
                          .block_tokens = 4,
                          .max_slots = 4,
                          .token_budget = chunk ? 8u : 64u,
                          .max_chunk = {}});
    scheduler.Add(Spec(1, "aaaabbbbc", 4));
    const StepSchedule step = scheduler.Schedule();
    scheduler.Remove(1);  // cancelled while the plan is out
    EXPECT_EQ(scheduler.blocks().cached(), 2u);
    scheduler.Add(Spec(2, "aaaabbbbd", 4));
    const StepSchedule second = scheduler.Schedule();
    ASSERT_EQ(RowsOf(second), (Rows{{2, 8, 1}}));
    internal::StepResult result;
    internal::StepOutput* output = result.add_outputs();
    output->set_slot(step.rows[0].slot.slot);
    output->set_slot_gen(step.rows[0].slot.gen);
    output->set_flags(internal::OUTPUT_NON_FINITE);
    EXPECT_TRUE(scheduler.CommitStep(result).empty());
    EXPECT_TRUE(scheduler.CommitStep(ResultOf(second)).empty())
        << "what was read from such blocks is not committed";
    EXPECT_EQ(scheduler.blocks().quarantined(), 2u);
    EXPECT_EQ(RowsOf(scheduler.Schedule()), (Rows{{2, 0, chunk ? 8u : 9u}}));
    EXPECT_TRUE(scheduler.CheckInvariants().ok()) << scheduler.CheckInvariants();
  }
}

TEST_F(SchedulerPrefix, ChainMovesToItsOwnBlocksWhenItsTwinIsEvicted) {
  Start(/*blocks=*/7);
  scheduler_.Add(Spec(1, "aaaabbbbc", 1));
  scheduler_.Add(Spec(2, "aaaabbbbdddde", 9));
  Step();  // both compute aaaabbbb, and the blocks of 1 are the known ones
  Step();
  scheduler_.Remove(1);
  EXPECT_EQ(scheduler_.blocks().cached(), 2u);
  EXPECT_EQ(scheduler_.blocks().used(), 4u);
  scheduler_.Add(Spec(3, "xxxxyyyyzz", 1));  // 3 blocks: 1 is free, 2 are those of 1
  EXPECT_EQ(Step(), (Rows{{2, 14, 1}, {3, 0, 10}}));
  scheduler_.Remove(3);
  EXPECT_EQ(scheduler_.prefix_evictions(), 2u);
  scheduler_.Remove(2);
  scheduler_.Add(Spec(4, "aaaabbbbddddf", 1));
  EXPECT_EQ(Step(), (Rows{{4, 12, 1}}));
}

TEST_F(SchedulerPrefix, EndOfAnEpochEmptiesIt) {
  Start(10);
  scheduler_.Add(Spec(1, "aaaabbbbc", 1));
  Finish(1);
  scheduler_.EndEpoch();
  Check();
  Start(10);
  scheduler_.Add(Spec(2, "aaaabbbbc", 1));
  EXPECT_EQ(Step(), (Rows{{2, 0, 9}}));
}

TEST_F(SchedulerPrefix, OffMeansThatNothingIsKept) {
  Start(10, 64, /*prefix_cache=*/false);
  scheduler_.Add(Spec(1, "aaaabbbbc", 1));
  Finish(1);
  EXPECT_EQ(scheduler_.blocks().cached(), 0u);
  scheduler_.Add(Spec(2, "aaaabbbbc", 1));
  EXPECT_EQ(Step(), (Rows{{2, 0, 9}}));
  EXPECT_EQ(scheduler_.prefix_queries(), 0u);
}

}  // namespace
}  // namespace bitshard
