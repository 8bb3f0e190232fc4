#include "coordinator/schedule/step_planner.h"

namespace bitshard {
namespace {

void WriteNewSequence(const ScheduledRow& row, internal::NewSequence* out) {
  const Sequence& sequence = *row.sequence;
  out->set_slot(row.slot.slot);
  out->set_slot_gen(row.slot.gen);
  out->mutable_tokens()->Add(sequence.tokens.begin(), sequence.tokens.end());
  out->set_n_prompt(sequence.n_prompt);
  out->set_cached_tokens(row.start);
  out->mutable_blocks()->Add(sequence.blocks.begin(), sequence.blocks.end());
  *out->mutable_sampling() = sequence.sampling;
  if (sequence.scores_left()) out->set_score_from(sequence.next_score);
  out->set_pooling(sequence.pooling);
}

}  // namespace

std::unique_ptr<internal::StepPlan> WriteStepPlan(const StepSchedule& schedule,
                                                  const StepStamp& stamp) {
  auto plan = std::make_unique<internal::StepPlan>();
  plan->set_term(stamp.term);
  plan->set_epoch(stamp.epoch);
  plan->set_step(stamp.step);
  for (const ScheduledRow& row : schedule.rows) {
    if (row.enters) WriteNewSequence(row, plan->add_new_sequences());
    plan->add_slot(row.slot.slot);
    plan->add_slot_gen(row.slot.gen);
    plan->add_start(row.start);
    plan->add_n_tokens(row.n_tokens);
    plan->add_output_index(row.output_index);
    const bool masked = row.sample && row.sequence->constrained;
    if (masked) plan->add_masks(row.sequence->mask);
    plan->add_flags((row.sample ? internal::ROW_SAMPLE : 0) |
                    (row.score ? internal::ROW_SCORE : 0) | (masked ? internal::ROW_MASKED : 0) |
                    (row.pool ? internal::ROW_POOL : 0));
    plan->add_n_new_blocks(row.enters ? 0 : static_cast<uint32_t>(row.new_blocks.size()));
    if (!row.enters) plan->mutable_new_blocks()->Add(row.new_blocks.begin(), row.new_blocks.end());
  }
  return plan;
}

}  // namespace bitshard
