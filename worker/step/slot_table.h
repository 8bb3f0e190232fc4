// What a worker remembers of the sequences between steps: token history, block table, sampling
// settings. And the judge of step plans: every plan is checked against it as a whole before
// anything changes.
//
// Owned by the step thread. Everything is reserved at construction; Check and Apply allocate
// nothing when they succeed. Counts are in tokens unless a name says blocks. Invariants of a used
// slot: computed <= tokens.size() <= context; KV of positions below `computed` lies in `blocks`.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "proto/plan.pb.h"
#include "worker/sample/edit_params.h"
#include "worker/sample/params.h"
#include "worker/step/pooled_vector.h"

namespace bitshard {

struct SlotLimits {
  uint32_t max_slots = 0;
  uint32_t max_step_tokens = 0;
  uint32_t context_tokens = 0;
  uint32_t vocab_size = 0;
  uint32_t block_tokens = 16;
  uint32_t hidden_size = 0;  // of what ROW_POOL rows pool
};

struct Slot {
  bool used = false;
  bool poisoned =
      false;  // something of this sequence was not finite; stays so until the slot is replaced
  uint32_t gen = 0;
  uint32_t computed = 0;
  uint32_t n_prompt = 0;    // of `tokens`, those that are no output
  uint32_t score_from = 0;  // the first token that ROW_SCORE rows score, at least 1
  // Prompt and sampled tokens; while a step runs, a placeholder for the one that it samples.
  // Reserved to the context length.
  std::vector<int32_t> tokens;
  std::vector<uint32_t> blocks;  // reserved to the blocks of the context length
  SampleParams sampling;
  EditParams edits;     // reserved
  PooledVector pooled;  // reserved
};

class SlotTable {
 public:
  explicit SlotTable(const SlotLimits& limits);

  // What a table with these limits reserves.
  static uint64_t Bytes(const SlotLimits& limits);

  // Forgets all sequences. `cache_blocks`: block ids are below it.
  void Reset(uint32_t cache_blocks);

  // INVALID_ARGUMENT (names row or sequence and value) and no change unless every part of the plan
  // is sound.
  absl::Status Check(const internal::StepPlan& plan);

  // Replaces slots, appends blocks, moves `computed`. REQUIRES: Check(plan).ok() and no change
  // since.
  void Apply(const internal::StepPlan& plan);

  Slot& slot(uint32_t i) { return slots_[i]; }
  const Slot& slot(uint32_t i) const { return slots_[i]; }
  const SlotLimits& limits() const { return limits_; }

 private:
  absl::Status CheckNewSequence(const internal::NewSequence& sequence) const;
  absl::Status CheckRows(const internal::StepPlan& plan);
  absl::Status CheckRow(const internal::StepPlan& plan, int row,
                        absl::Span<const uint32_t> new_blocks) const;
  absl::Status CheckMasks(const internal::StepPlan& plan) const;
  // Clears what CheckRows has noted.
  void ForgetNotes(const internal::StepPlan& plan);

  const SlotLimits limits_;
  uint32_t cache_blocks_ = 0;
  uint32_t max_blocks_ = 0;  // of one sequence
  std::vector<Slot> slots_;
  // While a plan is checked, by slot: its entry in plan.new_sequences + 1, and whether it has a
  // row.
  std::vector<uint32_t> new_sequence_;
  std::vector<uint8_t> has_row_;
};

}  // namespace bitshard
