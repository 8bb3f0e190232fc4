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
  // `score_last`: list also those tokens of ROW_SCORE rows after which nothing is known (somebody
  // listens to their logits).
  StepBatch(const SlotLimits& limits, bool score_last);

  // Lengthens the histories of sequences that sample by a placeholder, so that the next plan can be
  // checked, applied and spread out (into another batch) before Finish. REQUIRES: the plan has been
  // applied to `slots`.
  void Fill(const internal::StepPlan& plan, SlotTable& slots);

  // The tokens again, once none is a placeholder any more.
  void TakeTokens(const internal::StepPlan& plan, const SlotTable& slots);

  // Views of this batch; collective, pool and cache are the caller's to set.
  StepState State();

  // Takes the hidden states that the step made, [tokens, hidden size], into the vectors of ROW_POOL
  // rows' sequences. Before Finish.
  void Pool(const internal::StepPlan& plan, const float* hidden, SlotTable& slots);

  // Spreads poison to the sequences and reports it, puts the sampled tokens into their histories,
  // and writes the scores and the vectors that are complete to `result`. `drawn` (out): token
  // and flags of every output, then flags and log-probabilities of every score, then flags and a
  // hash of every vector, in the order of the rows, for the ranks to compare.
  void Finish(const internal::StepPlan& plan, SlotTable& slots, internal::StepResult& result,
              std::vector<uint32_t>& drawn);
  // The rest of the result: what was sampled. After Finish; the slots may have gone on.
  void WriteOutputs(const internal::StepPlan& plan, internal::StepResult& result) const;

 private:
  // A ROW_SCORE row: its place in the plan, and its part of scored_.
  struct ScoreRun {
    int plan_row = 0;
    uint32_t first = 0;  // the first scored token's place in the sequence
    size_t begin = 0, end = 0;
  };

  void ListScored(const internal::StepPlan& plan, int row, const Slot& slot);
  void Write(const SampleOutput& sample, const SampleParams& params,
             internal::StepOutput& out) const;
  void WriteScores(const internal::StepPlan& plan, const SlotTable& slots, const ScoreRun& run,
                   internal::StepScores& out, std::vector<uint32_t>& drawn) const;
  static void WriteEmbedding(const internal::StepPlan& plan, int row, const Slot& slot,
                             internal::StepEmbedding& out, std::vector<uint32_t>& drawn);

  const bool score_last_;
  bool pools_ = false;  // some row of the batch has ROW_POOL
  std::vector<int32_t> tokens_, positions_;
  std::vector<uint8_t> poisoned_;   // as tokens_
  std::vector<AttentionRow> rows_;  // as the plan's rows
  std::vector<ScoreRun> score_runs_;
  std::vector<ScoredToken> scored_;
  std::vector<SampleRow> score_rows_;   // as scored_
  std::vector<SampleOutput> scores_;    // as scored_, and more
  std::vector<int32_t> sampled_;        // places among tokens_
  std::vector<int> sampled_plan_rows_;  // as sampled_
  std::vector<uint32_t> sample_slots_;  // as sampled_
  std::vector<SampleRow> sample_rows_;  // as sampled_
  std::vector<LogitEdits> edits_;       // of those that have any
  std::vector<SampleOutput> samples_;   // as sampled_, and more
  std::vector<uint32_t> output_flags_;  // likewise; by Finish
};

}  // namespace bitshard
