// Random requests through the scheduler and a fake worker that knows what KV each block should
// hold: whatever the pool, the budget, the priorities, the cancels, the shared prefixes, the
// quarantines and the plans in flight, each request gets the tokens it would get alone, and finds
// only what was computed for the same seed.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "coordinator/schedule/scheduler.h"
#include "coordinator/schedule/step_planner.h"
#include "tests/support/fake_worker.h"
#include "tests/support/seed_count.h"

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
    limits_.prefix_cache = Below(4) > 0;
    if (Below(3) == 0) limits_.max_entering_bytes = 100 + Below(1500);
    several_ = Below(2) == 0;
    const uint32_t prefixes = Below(4);
    for (uint32_t i = 0; i < prefixes; ++i) {
      // They share beginnings, too.
      std::vector<uint32_t> prefix;
      if (i > 0) prefix.assign(prefixes_[0].begin(), prefixes_[0].begin() + Below(30));
      while (prefix.size() < 60) prefix.push_back(Below(kVocab));
      prefixes_.push_back(std::move(prefix));
    }
    quarantine_ = Below(3) == 0;
    depth_ = 1 + Below(2);
    cancel_percent_ = Below(2) == 0 ? 0 : 3;
    StartEpoch();
  }

  // What the walks must have met, or they show little.
  struct Met {
    uint64_t preemptions = 0, stale_outputs = 0, requests = 0, rows_of_chunks = 0;
    uint64_t held_back = 0;  // steps that had room, but no bytes left, for who waits
    uint64_t hits = 0, own_hits = 0, evictions = 0, quarantines = 0, sharers_preempted = 0;
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
    EXPECT_EQ(scheduler_.blocks().available() + scheduler_.blocks().quarantined(),
              limits_.total_blocks);
    if (!limits_.prefix_cache) {
      EXPECT_EQ(scheduler_.blocks().cached(), 0u);
    }
    EXPECT_EQ(ended_, requests);
    EXPECT_LE(worker_.largest_step_tokens(), limits_.token_budget);
    met.preemptions += scheduler_.preemptions();
    met.stale_outputs += scheduler_.stale_outputs();
    met.requests += static_cast<uint64_t>(requests);
    met.rows_of_chunks += rows_of_chunks_;
    met.held_back += held_back_;
    met.hits += scheduler_.prefix_hits();
    met.own_hits += own_hits_;
    met.evictions += scheduler_.prefix_evictions();
    met.quarantines += quarantines_;
    met.sharers_preempted += sharers_preempted_;
  }

 private:
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }

  void StartEpoch() {
    ++epoch_;
    computed_.clear();
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
    if (several_) spec.first_choice = id - id % 3;  // three are a request
    spec.priority = static_cast<int32_t>(Below(3)) - 1;
    spec.tenant = std::string(1, static_cast<char>('a' + Below(3)));
    spec.batch = Below(5) == 0;
    // None when all blocks are set aside; in the next epoch there are some again.
    const uint32_t most = std::max(2u, static_cast<uint32_t>(scheduler_.max_sequence_tokens()));
    const uint32_t total = 2 + Below(std::min(most - 1, 150u));
    const uint32_t n_prompt = 1 + Below(total - 1);
    if (!prefixes_.empty() && Below(4) > 0) {
      spec.prompt = prefixes_[Below(static_cast<uint32_t>(prefixes_.size()))];
      spec.prompt.resize(std::min<size_t>(n_prompt, Below(60)));
    }
    while (spec.prompt.size() < n_prompt) spec.prompt.push_back(Below(kVocab));
    if (Below(4) == 0) spec.cache_seed = "salted";
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
    // At least one token beside decodes, so that prefill goes on.
    const PrefillLimit limit = [this](const StepLoad& load, uint32_t) {
      return load.prefill_tokens == 0 ? 1 + Below(20) : Below(4);
    };
    const StepSchedule schedule = scheduler_.Schedule(false, Below(2) == 0 ? &limit : nullptr);
    for (SequenceId id : schedule.unfit) {
      ASSERT_GT(scheduler_.blocks().quarantined(), 0u);
      live_.erase(id);
      ++ended_;
    }
    ASSERT_LE(schedule.tokens, limits_.token_budget);
    const bool interactive_waits = std::any_of(live_.begin(), live_.end(), [this](const auto& one) {
      return !one.second.batch && !scheduler_.Get(one.first).slot.has_value();
    });
    uint32_t tokens = 0;
    const ServiceLevel* served = nullptr;  // of the prompts so far
    for (const ScheduledRow& row : schedule.rows) {
      tokens += row.n_tokens;
      if (row.enters || row.n_tokens > 1) {
        ASSERT_FALSE(served != nullptr && row.sequence->level < *served)
            << "sequence " << row.sequence->id << " comes after prompts of later levels";
        served = &row.sequence->level;
      }
      ASSERT_FALSE(interactive_waits && row.sequence->level.batch);
      ASSERT_LE(row.n_tokens, limits_.max_chunk.value_or(limits_.token_budget));
      rows_of_chunks_ += !row.sample;
      if (row.enters && row.start > 0) {
        if (!row.first_time) own_hits_ += row.start;
        ASSERT_TRUE(limits_.prefix_cache);
        ASSERT_TRUE(computed_.contains(KeyOf(*row.sequence, row.start)))
            << "nobody with this seed has computed what sequence " << row.sequence->id << " found";
      }
    }
    for (const ScheduledRow& row : schedule.rows) {
      const uint32_t known = static_cast<uint32_t>(row.sequence->tokens.size());
      for (uint32_t end = row.start + 1; end <= std::min(row.start + row.n_tokens, known); ++end) {
        if (end % limits_.block_tokens == 0) computed_.insert(KeyOf(*row.sequence, end));
      }
    }
    ASSERT_EQ(tokens, schedule.tokens);
    if (schedule.rows.empty()) {
      ASSERT_TRUE(live_.empty() || !out_.empty()) << "requests wait, nothing runs";
      return;
    }
    const auto plan = WriteStepPlan(schedule, {.term = 1, .epoch = epoch_, .step = ++step_});
    size_t entering_bytes = 0;
    for (const internal::NewSequence& entering : plan->new_sequences())
      entering_bytes += entering.ByteSizeLong();
    ASSERT_LE(entering_bytes, schedule.entering_bytes);
    ASSERT_TRUE(plan->new_sequences_size() <= 1 || entering_bytes <= limits_.max_entering_bytes);
    held_back_ += scheduler_.waiting() > 0 && schedule.tokens < limits_.token_budget &&
                  schedule.entering_bytes > 0 && schedule.preempted == 0 && !schedule.no_room &&
                  !schedule.limited;
    // The worker runs plans in order and on its own; the coordinator sees the result later.
    absl::StatusOr<std::unique_ptr<internal::StepResult>> result = worker_.Run(*plan);
    ASSERT_TRUE(result.ok()) << result.status() << "\n" << plan->ShortDebugString();
    out_.push_back(*std::move(result));
  }

  void Commit() {
    const std::unique_ptr<internal::StepResult> result = std::move(out_.front());
    out_.pop_front();
    // Logits that are not finite, in the result of one row.
    if (quarantine_ && Below(80) == 0 && result->outputs_size() > 0 &&
        scheduler_.blocks().usable() > 3) {
      result
          ->mutable_outputs(static_cast<int>(Below(static_cast<uint32_t>(result->outputs_size()))))
          ->set_flags(internal::OUTPUT_NON_FINITE);
    }
    for (const bitshard::Commit& commit : scheduler_.CommitStep(*result)) {
      if (commit.kind == bitshard::Commit::Kind::kNonFinite) {
        scheduler_.Quarantine(commit.id);
        ++quarantines_;
        sharers_preempted_ += scheduler_.blocks().condemned() > 0;
        live_.erase(commit.id);
        ++ended_;
        continue;
      }
      ASSERT_EQ(commit.kind, bitshard::Commit::Kind::kToken);
      const Sequence& sequence = scheduler_.Get(commit.id);
      // A token that was computed ahead of its commit.
      const uint32_t known = static_cast<uint32_t>(sequence.tokens.size());
      if (sequence.computed >= known && known % limits_.block_tokens == 0)
        computed_.insert(KeyOf(sequence, known));
      // Some end early, as at an end token: the plans in flight do not know it yet.
      if (sequence.outputs() < sequence.max_tokens && Below(40) > 0) continue;
      ExpectAloneTokens(sequence);
      scheduler_.Remove(commit.id);
      live_.erase(commit.id);
      ++ended_;
    }
  }

  // What a block may be found by, as the test sees it.
  static std::pair<std::string, std::vector<uint32_t>> KeyOf(const Sequence& sequence,
                                                             uint32_t end) {
    return {sequence.cache_seed, {sequence.tokens.begin(), sequence.tokens.begin() + end}};
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
  uint64_t rows_of_chunks_ = 0, held_back_ = 0, own_hits_ = 0, quarantines_ = 0,
           sharers_preempted_ = 0;
  std::vector<std::vector<uint32_t>> prefixes_;
  bool quarantine_ = false, several_ = false;
  std::set<std::pair<std::string, std::vector<uint32_t>>> computed_;  // in this epoch
};

constexpr uint32_t kSeeds = SeedCount(500);

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
  EXPECT_GT(met.held_back, kSeeds / 5);
  EXPECT_GT(met.hits, 20 * kSeeds);
  EXPECT_GT(met.own_hits, 10 * kSeeds);
  EXPECT_GT(met.evictions, 20 * kSeeds);
  EXPECT_GT(met.quarantines, kSeeds / 5);
  EXPECT_GT(met.sharers_preempted, kSeeds / 100);
}

}  // namespace
}  // namespace bitshard
