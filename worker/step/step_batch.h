// A checked plan spread out into the arrays that ops read, and the way back from sampled tokens to
// a StepResult.
//
// Owned by the step thread; everything is reserved at construction.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/plan.pb.h"
#include "worker/ops/op.h"
#include "worker/step/slot_table.h"

namespace bitshard {

class StepBatch {
 public:
  // `keep_scored`: list the tokens of ROW_SCORE rows (somebody listens to their logits).
  StepBatch(const SlotLimits& limits, bool keep_scored);

  // REQUIRES: the plan has been applied to `slots`.
  void Fill(const internal::StepPlan& plan, const SlotTable& slots);

  // Views of this batch; collective, pool and cache are the caller's to set.
  StepState State();

  // Spreads poison to the sequences, appends the sampled tokens to their histories and writes them
  // to `result`. `drawn` (out): token and flags of every output, in the order of the rows, for the
  // ranks to compare.
  void Finish(const internal::StepPlan& plan, SlotTable& slots, internal::StepResult& result,
              std::vector<uint32_t>& drawn) const;

 private:
  void Write(const SampleOutput& sample, const SampleParams& params,
             internal::StepOutput& out) const;

  const bool keep_scored_;
  std::vector<int32_t> tokens_, positions_;
  std::vector<uint8_t> poisoned_;   // as tokens_
  std::vector<AttentionRow> rows_;  // as the plan's rows
  std::vector<ScoredToken> scored_;
  std::vector<int32_t> sampled_;        // places among tokens_
  std::vector<int> sampled_plan_rows_;  // as sampled_
  std::vector<uint32_t> sample_slots_;  // as sampled_
  std::vector<SampleRow> sample_rows_;  // as sampled_
  std::vector<SampleOutput> samples_;   // as sampled_, and more
};

}  // namespace bitshard
