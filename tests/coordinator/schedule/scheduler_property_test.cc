// Random requests through the scheduler and a fake worker that knows what KV each block should
// hold: whatever the pool, the budget, the priorities, the cancels and the plans in flight, each
// request gets the tokens it would get alone.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/schedule/scheduler.h"
#include "coordinator/schedule/step_planner.h"
#include "tests/support/fake_worker.h"

namespace bitshard {
namespace {

constexpr uint32_t kVocab = 64;

class Walk {
 public:
  explicit Walk(uint32_t seed)
      : random_(seed), worker_({.vocab_size = kVocab, .next_token = {}, .non_finite = {}}) {
    limits_.total_blocks = 3 + Below(20);
    limits_.block_tokens = 1 + Below(16);
    limits_.max_slots = 1 + Below(8);
    limits_.token_budget = 1 + Below(40);
    if (Below(3) == 0) limits_.max_chunk = 1 + Below(9);
    depth_ = 1 + Below(2);
    cancel_percent_ = Below(2) == 0 ? 0 : 3;
    StartEpoch();
  }

  // What the walks must have met, or they show little.
  struct Met {
    uint64_t preemptions = 0, stale_outputs = 0, requests = 0, rows_of_chunks = 0;
  };

  void Run(int requests, Met& met) {
    SequenceId next_id = 1;
    for (int turn = 0;; ++turn) {
      ASSERT_LT(turn, 200000) << "no end in sight: the scheduler is stuck";
      while (next_id <= static_cast<SequenceId>(requests) && scheduler_.waiting() < 8 &&
             Below(3) > 0)
        Add(next_id++);
      if (Below(100) < cancel_percent_) CancelSomebody();
      if (Below(500) == 0) LoseGroup();
      if (out_.size() < depth_) Plan();
      if (!out_.empty() && (out_.size() == depth_ || Below(2) == 0)) Commit();
      const absl::Status status = scheduler_.CheckInvariants();
      ASSERT_TRUE(status.ok()) << status << " in turn " << turn;
      if (testing::Test::HasFailure()) return;
      if (live_.empty() && next_id > static_cast<SequenceId>(requests) && out_.empty()) break;
    }
    EXPECT_EQ(scheduler_.blocks().used(), 0u);
    EXPECT_EQ(scheduler_.blocks().free(), limits_.total_blocks);
    EXPECT_EQ(ended_, requests);
    EXPECT_LE(worker_.largest_step_tokens(), limits_.token_budget);
    met.preemptions += scheduler_.preemptions();
    met.stale_outputs += scheduler_.stale_outputs();
    met.requests += static_cast<uint64_t>(requests);
    met.rows_of_chunks += rows_of_chunks_;
  }

 private:
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  void StartEpoch() {
    ++epoch_;
    scheduler_.StartEpoch(limits_);
    worker_.StartEpoch({.term = 1,
                        .epoch = epoch_,
                        .world = 1,
                        .cache_blocks = limits_.total_blocks,
                        .block_tokens = limits_.block_tokens,
                        .max_slots = limits_.max_slots,
                        .max_step_tokens = limits_.token_budget});
    step_ = 0;
  }

  void Add(SequenceId id) {
    SequenceSpec spec;
    spec.id = id;
    spec.priority = static_cast<int32_t>(Below(3)) - 1;
    const uint32_t most = static_cast<uint32_t>(scheduler_.max_sequence_tokens());
    const uint32_t total = 2 + Below(std::min(most - 1, 150u));
    const uint32_t n_prompt = 1 + Below(total - 1);
    for (uint32_t i = 0; i < n_prompt; ++i) spec.prompt.push_back(Below(kVocab));
    spec.max_tokens = total - n_prompt;
    spec.sampling.set_seed(random_());
    live_[id] = spec;
    scheduler_.Add(std::move(spec));
  }

  void CancelSomebody() {
    if (live_.empty()) return;
    auto victim = std::next(live_.begin(), Below(static_cast<uint32_t>(live_.size())));
    scheduler_.Remove(victim->first);
    live_.erase(victim);
    ++ended_;
  }

  void LoseGroup() {
    out_.clear();
    scheduler_.EndEpoch();
    ASSERT_TRUE(scheduler_.CheckInvariants().ok()) << scheduler_.CheckInvariants();
    StartEpoch();
  }

  void Plan() {
    const StepSchedule schedule = scheduler_.Schedule();
    ASSERT_TRUE(schedule.unfit.empty());
    ASSERT_LE(schedule.tokens, limits_.token_budget);
    uint32_t tokens = 0;
    for (const ScheduledRow& row : schedule.rows) {
      tokens += row.n_tokens;
      ASSERT_LE(row.n_tokens, limits_.max_chunk.value_or(limits_.token_budget));
      rows_of_chunks_ += !row.sample;
    }
    ASSERT_EQ(tokens, schedule.tokens);
    if (schedule.rows.empty()) {
      ASSERT_TRUE(live_.empty() || !out_.empty()) << "requests wait, nothing runs";
      return;
    }
    const auto plan = WriteStepPlan(schedule, {.term = 1, .epoch = epoch_, .step = ++step_});
    // The worker runs plans in order and on its own; the coordinator sees the result later.
    absl::StatusOr<std::unique_ptr<internal::StepResult>> result = worker_.Run(*plan);
    ASSERT_TRUE(result.ok()) << result.status() << "\n" << plan->ShortDebugString();
    out_.push_back(*std::move(result));
  }

  void Commit() {
    const std::unique_ptr<internal::StepResult> result = std::move(out_.front());
    out_.pop_front();
    for (const bitshard::Commit& commit : scheduler_.CommitStep(*result)) {
      ASSERT_EQ(commit.kind, bitshard::Commit::Kind::kToken);
      const Sequence& sequence = scheduler_.Get(commit.id);
      // Some end early, as at an end token: the plans in flight do not know it yet.
      if (sequence.outputs() < sequence.max_tokens && Below(40) > 0) continue;
      ExpectAloneTokens(sequence);
      scheduler_.Remove(commit.id);
      live_.erase(commit.id);
      ++ended_;
    }
  }

  void ExpectAloneTokens(const Sequence& sequence) {
    const SequenceSpec& spec = live_.at(sequence.id);
    std::vector<uint32_t> alone = spec.prompt;
    const FakeWorker::NextToken next = FakeWorker::HashedNextToken(kVocab);
    while (alone.size() < sequence.tokens.size()) alone.push_back(next(alone, spec.sampling));
    ASSERT_EQ(sequence.tokens, alone) << "sequence " << sequence.id;
  }

  std::mt19937 random_;
  SchedulerLimits limits_;
  uint32_t depth_ = 1, cancel_percent_ = 0;
  Scheduler scheduler_;
  FakeWorker worker_;
  uint64_t epoch_ = 0, step_ = 0;
  std::map<SequenceId, SequenceSpec> live_;
  std::deque<std::unique_ptr<internal::StepResult>> out_;
  int ended_ = 0;
  uint64_t rows_of_chunks_ = 0;
};

// A sanitizer makes it 40 times slower; there is one thread, so fewer seeds show as much.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint32_t kSeeds = 50;
#else
constexpr uint32_t kSeeds = 500;
#endif

TEST(SchedulerProperty, EachRequestGetsTheTokensItWouldGetAlone) {
  Walk::Met met;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Walk(seed).Run(/*requests=*/40, met);
    if (HasFailure()) return;
  }
  EXPECT_EQ(met.requests, 40 * kSeeds);
  EXPECT_GT(met.preemptions, 2 * kSeeds);
  EXPECT_GT(met.stale_outputs, 2 * kSeeds);
  EXPECT_GT(met.rows_of_chunks, 20 * kSeeds);
}

}  // namespace
}  // namespace bitshard
