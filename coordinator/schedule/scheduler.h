// Who runs next: continuous batching over a paged KV cache, without phases.
//
// Pure and single-threaded (engine thread): no clock, no I/O, no logging; the same calls give the
// same answers. README.md of this folder has the concepts and the invariants.
//
// Each Schedule() spends a token budget: first on running sequences that lack one token (decodes),
// then level by level on running ones that lack more (chunks of prompts and of recomputed history)
// and on waiting ones, each in the order of service, waiting ones as fair_queue.h has it: a prompt
// under way keeps its blocks and pauses while an earlier level's prompts take the budget. Batch
// sequences come after all that, in steps in which nothing interactive waits, and give up slots
// and blocks that something interactive wants. Blocks are taken as tokens need them. When none
// is free, the last running sequence in the order of service is preempted: blocks and slot go back,
// it waits and is recomputed later. The first in the order is never preempted, so somebody always
// gets on; one that cannot go on even alone is handed back as unfit.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

#include "coordinator/schedule/block_pool.h"
#include "coordinator/schedule/fair_queue.h"
#include "coordinator/schedule/level_load.h"
#include "coordinator/schedule/prefix_cache.h"
#include "coordinator/schedule/sequence.h"
#include "coordinator/schedule/step_load.h"
#include "proto/message_limits.h"
#include "proto/plan.pb.h"

namespace bitshard {

// What a sequence adds to the plan with which it enters, at most; its row left out.
uint64_t EnteringBytes(const Sequence& sequence, uint32_t block_tokens);

// What the group of workers offers, and the bounds to keep. Fixed within an epoch.
struct SchedulerLimits {
  uint32_t total_blocks = 0;
  uint32_t block_tokens = 16;
  uint32_t max_slots = 0;             // sequences that run at once; each decode takes of the budget
  uint32_t token_budget = 0;          // per step
  std::optional<uint32_t> max_chunk;  // tokens of one sequence in a step
  bool prefix_cache = true;
  // Of what enters in one step, as EnteringBytes counts it, but for a sequence that enters alone: a
  // plan must not be larger than a message may be.
  uint64_t max_entering_bytes = kMaxEnteringBytes;
};

// One row of a step, before it becomes a plan.
struct ScheduledRow {
  const Sequence* sequence = nullptr;  // valid until the scheduler is called next
  SlotRef slot;
  uint32_t start = 0, n_tokens = 0;
  bool enters = false;      // the sequence gets its slot in this step
  bool first_time = false;  // enters, and has never run before
  bool sample = false;
  bool score = false;
  bool pool = false;          // into the sequence's vector
  bool embeds = false;        // with pool: the vector is complete
  uint32_t output_index = 0;  // with sample
  std::vector<BlockId> new_blocks;

  bool is_decode() const { return sample && n_tokens == 1 && start >= sequence->n_prompt; }
};

struct StepSchedule {
  std::vector<ScheduledRow> rows;
  uint32_t tokens = 0;
  uint64_t entering_bytes = 0;
  StepLoad load;
  uint32_t preempted = 0;  // sequences, since the last schedule
  // Why the next one that waits did not enter: no slot or no blocks for it, or `limit`. Neither:
  // nobody waits, or the step is full.
  bool no_room = false, limited = false;
  bool next_is_batch = false;  // with no_room: it is a batch sequence, and pushes nobody out
  std::vector<SequenceId>
      unfit;  // removed: the blocks that are not quarantined can never hold them
};

// What became of one output of a step.
struct Commit {
  enum class Kind {
    kToken,        // appended to the sequence
    kScores,       // of the tokens from `scores->first()` on; `last`: there are no more
    kEmbedding,    // the prompt's vector; nothing else comes
    kNonFinite,    // the caller ends the sequence through Quarantine
    kNoneAllowed,  // the masks left no token; the caller ends the sequence
    kMissing,  // the row was to bring something and brought nothing, or a token out of range; the
               // caller ends the sequence
  };
  SequenceId id = 0;
  Kind kind = Kind::kToken;
  uint32_t output_index = 0;
  const internal::StepOutput* output = nullptr;        // into the result, with kToken
  const internal::StepScores* scores = nullptr;        // into the result, with kScores
  bool last = false;                                   // with kScores
  const internal::StepEmbedding* embedding = nullptr;  // into the result, with kEmbedding
};

class Scheduler {
 public:
  Scheduler() = default;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // REQUIRES: nothing was added yet.
  void SetTenantWeights(FairQueue::Weights weights) { waiting_.set_weights(std::move(weights)); }

  // A new group with an empty cache. REQUIRES: no epoch is running, all limits > 0.
  void StartEpoch(const SchedulerLimits& limits);
  // The group is gone, with all KV and all plans in flight: running sequences wait again, committed
  // tokens stay.
  void EndEpoch();
  bool has_epoch() const { return has_epoch_; }

  // Queues a sequence. REQUIRES: a new id, larger than all before.
  void Add(SequenceSpec spec);
  // Forgets a sequence; its slot and blocks are free from the next plan on, and what they hold
  // stays in the prefix cache. REQUIRES: Contains(id).
  void Remove(SequenceId id);
  // As Remove, but its blocks are set aside for the rest of the epoch; who shares one of them is
  // preempted before the next plan or commit. REQUIRES: Contains(id).
  void Quarantine(SequenceId id);
  // The token mask of a constrained sequence's next output; it gets no row to draw it before.
  // REQUIRES: Contains(id), all outputs before it are committed.
  void SetMask(SequenceId id, std::string mask);
  bool Contains(SequenceId id) const { return sequences_.contains(id); }
  // REQUIRES: Contains(id).
  const Sequence& Get(SequenceId id) const;

  // Chooses the rows of the next step and takes it as sent: Commit expects its result after those
  // of earlier steps. When there is nothing to run the schedule has no rows and no result is
  // expected, unless `allow_empty`. No rows, nothing in flight => no sequence is left but such that
  // await their masks. `limit`, if
  // any, is asked for every further row of a step that holds decodes. REQUIRES: has_epoch().
  StepSchedule Schedule(bool allow_empty = false, const PrefillLimit* limit = nullptr);

  // Takes the result of the oldest step in flight. An output counts only when slot, slot_gen and
  // row are those of that step and of a sequence that still holds them, and output_index equals the
  // committed count; others are dropped. Scores count when they go on where the committed ones end.
  std::vector<Commit> CommitStep(const internal::StepResult& result);

  uint32_t steps_in_flight() const { return static_cast<uint32_t>(in_flight_.size()); }
  uint32_t running() const { return static_cast<uint32_t>(running_.size()); }
  uint32_t waiting() const { return static_cast<uint32_t>(waiting_.size()); }
  // Requests: those of which a choice runs.
  uint32_t running_requests() const { return running_requests_; }
  // Sums over the running sequences, kept as they change: prompt tokens; of these, those of choices
  // after their request's first; what was given and no plan computes yet; outputs in plans so far.
  uint64_t running_prompt_tokens() const { return total_.prompt_tokens; }
  uint64_t running_further_tokens() const { return total_.further_tokens; }
  uint64_t uncomputed_prompt_tokens() const { return total_.uncomputed_tokens; }
  uint64_t running_outputs() const { return total_.output_tokens; }
  // In the order of service, those where something runs or waits again. O(levels).
  void FillLevelLoads(std::vector<LevelLoad>* loads) const;
  uint64_t preemptions() const { return preemptions_; }
  uint64_t stale_outputs() const { return stale_outputs_; }
  // Tokens of sequences that entered for the first time, and how many of them were in the prefix
  // cache.
  uint64_t prefix_queries() const { return prefix_queries_; }
  uint64_t prefix_hits() const { return prefix_hits_; }
  // Blocks that the prefix cache threw out because somebody needed them.
  uint64_t prefix_evictions() const {
    return prefix_evictions_ + (cache_.has_value() ? cache_->evicted() : 0);
  }
  const BlockPool& blocks() const { return pool_; }
  const SchedulerLimits& limits() const { return limits_; }
  // Tokens of prompt + max_tokens that a sequence may have at most, now.
  uint64_t max_sequence_tokens() const;
  // The id that waits for longest.
  std::optional<SequenceId> OldestWaiting() const;
  // What waits, in the order of service as of now. O(n log n).
  std::vector<const Sequence*> WaitingInOrder() const { return waiting_.InOrder(); }

  // INTERNAL with the first broken invariant; for tests. O(sequences + blocks).
  absl::Status CheckInvariants() const;

 private:
  struct SampledRow {
    SequenceId id;
    SlotRef slot;
    bool sample;
    bool score;
    bool embeds;
    uint32_t end;         // start + n_tokens
    bool failed = false;  // its sequence is to end, nothing else counts
    bool sampled = false, scored = false, embedded = false;
    size_t first_written, n_written;  // of InFlightStep.written
  };
  struct InFlightStep {
    std::vector<SampledRow> rows;
    std::vector<BlockId> written;  // blocks, in the order of the rows
  };
  using Queue = std::set<Sequence*, ServedBefore>;

  // False: it is not what the row was to bring, and counts as nothing.
  bool TakeScores(const SampledRow& row, const internal::StepScores& scores, Commit* commit);
  void ScheduleLevels(bool batch, const PrefillLimit* limit, StepSchedule& step);
  // Also notes who lacks more than one token, in prompts_.
  void ScheduleDecodes(bool batch, const PrefillLimit* limit, StepSchedule& step);
  void SchedulePrompts(bool batch, const PrefillLimit* limit, StepSchedule& step);
  // Those that wait at levels before `end` (none: all), in order. False when one is held up.
  bool AdmitWaiting(const std::optional<ServiceLevel>& end, const PrefillLimit* limit,
                    StepSchedule& step);
  void Enter(Sequence* sequence, PrefixCache::Hit hit);
  // A slot, and blocks for all that it knows beside what the running ones lack for what they know.
  bool Fits(const Sequence& sequence, const PrefixCache::Hit& hit) const;
  // Fits once all batch sequences are out.
  bool FitsWithoutBatch(const Sequence& sequence, const PrefixCache::Hit& hit) const;
  // Tells the prefix cache of the blocks that plans sent so far have filled with committed tokens,
  // of one sequence or of all that run. `torn`: its chain may have been dropped.
  void Index(Sequence* sequence, bool torn);
  void IndexRunning();
  PrefixCache::Hit FindCached(const Sequence& sequence) const;
  // Preempts who shares a block with a sequence whose blocks were quarantined.
  void PreemptCondemned();
  // Non-finite values were written there, and nobody is left whose end would quarantine them.
  void SetAside(absl::Span<const BlockId> written);
  // Blocks for `sequence` to compute `n_tokens` more; preempts others, or `sequence` itself, when
  // there is no other way. False when `sequence` does not run any more.
  bool MakeRoom(Sequence* sequence, uint32_t n_tokens, StepSchedule& step);
  void AddRow(Sequence* sequence, uint32_t n_tokens, bool enters, StepSchedule& step);
  void Preempt(Sequence* victim, StepSchedule& step);
  void BackToWaiting(Sequence* victim);
  void LeaveSlot(Sequence* sequence, bool quarantine_blocks);
  void Forget(SequenceId id, bool quarantine_blocks);
  // How many of its pending tokens a sequence may compute in what is left of the step's budget.
  uint32_t ChunkOf(const Sequence& sequence, const PrefillLimit* limit,
                   const StepSchedule& step) const;
  uint32_t BlocksToTake(const Sequence& sequence, uint32_t n_tokens) const;
  // Blocks that a running sequence still lacks for the tokens it knows.
  uint64_t OwedBlocks(const Sequence& sequence) const;
  static BlockPool::Owner OwnerOf(const Sequence& sequence) {
    return sequence.level.batch ? BlockPool::Owner::kGivesWay : BlockPool::Owner::kFirm;
  }
  // The sums: what a sequence counts for, as it is; brings them up to date with it, or makes it
  // count for `share`; compares them with a walk over all.
  LoadShare ShareOf(const Sequence& sequence) const;
  void Recount(Sequence* sequence) { SetShare(sequence, ShareOf(*sequence)); }
  void SetShare(Sequence* sequence, const LoadShare& share);
  // It runs, or runs no more.
  void CountRequest(const Sequence& sequence, bool runs);
  absl::Status CheckSums() const;

  SchedulerLimits limits_;
  bool has_epoch_ = false;
  BlockPool pool_{0};
  std::optional<PrefixCache> cache_;  // within an epoch; knows nothing with prefix_cache off
  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  Queue running_;
  FairQueue waiting_;
  std::map<ServiceLevel, LevelSums> levels_;  // with sequences
  LoadShare total_, batch_;                   // of all, and of the batch levels
  uint32_t running_requests_ = 0;
  // Of requests with several choices, by the first one's id: how many of them run; none is not
  // there.
  absl::flat_hash_map<SequenceId, uint32_t> running_choices_;
  // First come, first out: the last step of a sequence that has ended may still be on its way, and
  // workers get no plan ready beside one whose slots it takes.
  std::deque<uint32_t> free_slots_;
  std::vector<uint32_t> slot_gen_;  // by slot: the last generation given out; goes on over epochs
  std::vector<Sequence*> in_slot_;  // by slot; null when it is free
  std::deque<InFlightStep> in_flight_;
  uint64_t preemptions_ = 0, stale_outputs_ = 0;
  // Since the last schedule.
  uint32_t preempted_since_ = 0;
  uint64_t schedules_ = 0;
  std::vector<Sequence*> prompts_;  // of the schedule at hand, in the order of service
  // The cache's, at the last IndexRunning.
  uint64_t drops_at_indexing_ = 0;
  uint64_t prefix_queries_ = 0, prefix_hits_ = 0;
  uint64_t prefix_evictions_ = 0;  // of epochs before
};

}  // namespace bitshard
