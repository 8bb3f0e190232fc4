#include "coordinator/schedule/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/check.h"

namespace bitshard {

void Scheduler::StartEpoch(const SchedulerLimits& limits) {
  CHECK(!has_epoch_) << "the last epoch has not ended";
  CHECK(limits.total_blocks > 0 && limits.block_tokens > 0 && limits.max_slots > 0 &&
        limits.token_budget > 0 && limits.max_chunk.value_or(1) > 0)
      << "blocks " << limits.total_blocks << " of " << limits.block_tokens << " tokens, slots "
      << limits.max_slots << ", budget " << limits.token_budget;
  limits_ = limits;
  has_epoch_ = true;
  pool_ = BlockPool(limits.total_blocks);
  if (slot_gen_.size() < limits.max_slots) slot_gen_.resize(limits.max_slots, 0);
  free_slots_.clear();
  for (uint32_t i = limits.max_slots; i > 0; --i) free_slots_.push_back(i - 1);
}

void Scheduler::EndEpoch() {
  has_epoch_ = false;
  in_flight_.clear();
  while (!running_.empty()) {
    Sequence* sequence = *running_.begin();
    running_.erase(running_.begin());
    LeaveSlot(sequence, /*quarantine_blocks=*/false);
    waiting_.insert(sequence);
  }
  pool_ = BlockPool(0);
  free_slots_.clear();
}

void Scheduler::Add(SequenceSpec spec) {
  CHECK(!spec.prompt.empty() && (spec.max_tokens > 0 || spec.score_from.has_value()))
      << "sequence " << spec.id << " has nothing to do";
  const SequenceId id = spec.id;
  auto [entry, is_new] = sequences_.try_emplace(id, std::make_unique<Sequence>(std::move(spec)));
  CHECK(is_new) << "sequence " << id << " exists";
  waiting_.insert(entry->second.get());
}

void Scheduler::Remove(SequenceId id) { Forget(id, /*quarantine_blocks=*/false); }

void Scheduler::Quarantine(SequenceId id) { Forget(id, /*quarantine_blocks=*/true); }

const Sequence& Scheduler::Get(SequenceId id) const {
  auto entry = sequences_.find(id);
  CHECK(entry != sequences_.end()) << "no sequence " << id;
  return *entry->second;
}

StepSchedule Scheduler::Schedule(bool allow_empty) {
  CHECK(has_epoch_) << "no group to schedule for";
  StepSchedule step;
  ScheduleRunning(/*decodes=*/true, step);
  ScheduleRunning(/*decodes=*/false, step);
  // What was just preempted would only come straight back; but somebody must run.
  if (step.preempted == 0 || running_.empty()) AdmitWaiting(step);

  if (step.rows.empty() && !allow_empty) return step;
  InFlightStep sent;
  sent.reserve(step.rows.size());
  for (const ScheduledRow& row : step.rows) {
    sent.push_back({.id = row.sequence->id,
                    .slot = row.slot,
                    .sample = row.sample,
                    .score = row.score,
                    .end = row.start + row.n_tokens});
  }
  in_flight_.push_back(std::move(sent));
  return step;
}

void Scheduler::ScheduleRunning(bool decodes, StepSchedule& step) {
  for (auto it = running_.begin(); it != running_.end() && step.tokens < limits_.token_budget;) {
    Sequence* sequence = *it;
    const uint32_t pending = sequence->pending();
    if (pending == 0 || (pending == 1) != decodes) {
      ++it;
      continue;
    }
    const uint32_t n_tokens = ChunkOf(*sequence, step);
    if (!MakeRoom(sequence, n_tokens, step)) return;  // it was the last in the order
    AddRow(sequence, n_tokens, /*enters=*/false, step);
    ++it;  // MakeRoom takes out only sequences that come later
  }
}

void Scheduler::AdmitWaiting(StepSchedule& step) {
  while (!waiting_.empty() && !free_slots_.empty() && step.tokens < limits_.token_budget) {
    Sequence* sequence = *waiting_.begin();
    if (sequence->most_blocks(limits_.block_tokens) > pool_.usable()) {
      step.unfit.push_back(sequence->id);
      Forget(sequence->id, /*quarantine_blocks=*/false);
      continue;
    }
    // All that it knows must fit beside what the running ones still need for what they know; the
    // first that does not fit holds up the ones behind it, so that a large request is not passed by
    // for ever.
    if (OwedBlocks() + sequence->known_blocks(limits_.block_tokens) > pool_.free()) return;

    const uint32_t n_tokens = ChunkOf(*sequence, step);
    waiting_.erase(waiting_.begin());
    running_.insert(sequence);
    const uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    sequence->slot = SlotRef{slot, ++slot_gen_[slot]};
    AddRow(sequence, n_tokens, /*enters=*/true, step);
  }
}

bool Scheduler::MakeRoom(Sequence* sequence, uint32_t n_tokens, StepSchedule& step) {
  const uint32_t wanted = BlocksToTake(*sequence, n_tokens);
  while (pool_.free() < wanted) {
    Sequence* last = *running_.rbegin();
    if (last != sequence) {
      Preempt(last, step);
    } else if (running_.size() > 1) {
      Preempt(sequence, step);
      return false;
    } else {
      step.unfit.push_back(sequence->id);
      Forget(sequence->id, /*quarantine_blocks=*/false);
      return false;
    }
  }
  return true;
}

void Scheduler::AddRow(Sequence* sequence, uint32_t n_tokens, bool enters, StepSchedule& step) {
  ScheduledRow row;
  row.sequence = sequence;
  row.slot = *sequence->slot;
  row.start = sequence->computed;
  row.n_tokens = n_tokens;
  row.enters = enters;
  row.first_time = !sequence->has_run;
  absl::StatusOr<std::vector<BlockId>> blocks = pool_.Allocate(BlocksToTake(*sequence, n_tokens));
  CHECK_OK(blocks.status());
  row.new_blocks = *std::move(blocks);
  sequence->blocks.insert(sequence->blocks.end(), row.new_blocks.begin(), row.new_blocks.end());
  row.score = sequence->scores;
  row.sample = !row.score && sequence->computed + n_tokens == sequence->known();
  sequence->computed += n_tokens;
  sequence->has_run = true;
  if (row.sample) {
    row.output_index = sequence->outputs() + sequence->in_flight;
    ++sequence->in_flight;
  }
  step.tokens += n_tokens;
  step.rows.push_back(std::move(row));
}

void Scheduler::Preempt(Sequence* victim, StepSchedule& step) {
  auto row = std::find_if(step.rows.begin(), step.rows.end(),
                          [&](const ScheduledRow& r) { return r.sequence == victim; });
  if (row != step.rows.end()) {
    step.tokens -= row->n_tokens;
    step.rows.erase(row);
  }
  running_.erase(victim);
  LeaveSlot(victim, /*quarantine_blocks=*/false);
  waiting_.insert(victim);
  ++victim->preemptions;
  ++preemptions_;
  ++step.preempted;
}

void Scheduler::LeaveSlot(Sequence* sequence, bool quarantine_blocks) {
  for (BlockId id : sequence->blocks) {
    if (quarantine_blocks) {
      pool_.ReleaseToQuarantine(id);
    } else {
      pool_.Release(id);
    }
  }
  sequence->blocks.clear();
  sequence->computed = 0;
  sequence->in_flight = 0;
  if (sequence->slot.has_value()) free_slots_.push_back(sequence->slot->slot);
  sequence->slot.reset();
}

void Scheduler::Forget(SequenceId id, bool quarantine_blocks) {
  auto entry = sequences_.find(id);
  CHECK(entry != sequences_.end()) << "no sequence " << id;
  Sequence* sequence = entry->second.get();
  (sequence->slot.has_value() ? running_ : waiting_).erase(sequence);
  LeaveSlot(sequence, quarantine_blocks);
  sequences_.erase(entry);
}

std::vector<Commit> Scheduler::CommitStep(const internal::StepResult& result) {
  CHECK(!in_flight_.empty()) << "step " << result.step() << " was never sent";
  InFlightStep sent = std::move(in_flight_.front());
  in_flight_.pop_front();

  absl::flat_hash_map<uint32_t, SampledRow*> row_of_slot;
  for (SampledRow& row : sent) row_of_slot.emplace(row.slot.slot, &row);
  // A sequence that was preempted or removed since, or came back into another slot, holds the row's
  // slot no more.
  auto still_there = [&](const SampledRow& row) {
    auto entry = sequences_.find(row.id);
    return entry != sequences_.end() && entry->second->slot == row.slot;
  };

  // The row that waits for this output; null when nobody does any more.
  auto row_of = [&](const auto& output) -> SampledRow* {
    auto found = row_of_slot.find(output.slot());
    SampledRow* row = found == row_of_slot.end() ? nullptr : found->second;
    if (row != nullptr && row->slot.gen == output.slot_gen() && !row->answered && still_there(*row))
      return row;
    ++stale_outputs_;
    return nullptr;
  };

  std::vector<Commit> commits;
  for (const internal::StepOutput& output : result.outputs()) {
    SampledRow* row = row_of(output);
    if (row == nullptr) continue;
    Sequence* sequence = sequences_.find(row->id)->second.get();
    Commit commit{.id = row->id, .output_index = sequence->outputs(), .output = &output};
    if (output.flags() & internal::OUTPUT_NON_FINITE) {
      commit.kind = Commit::Kind::kNonFinite;  // in any row, also one that samples nothing
    } else if (!row->sample || output.output_index() != sequence->outputs() ||
               output.token() > uint32_t{std::numeric_limits<int32_t>::max()}) {
      ++stale_outputs_;
      continue;
    } else {
      sequence->tokens.push_back(output.token());
      --sequence->in_flight;
    }
    row->answered = true;
    commits.push_back(commit);
  }
  for (const internal::StepScores& scores : result.scores()) {
    SampledRow* row = row_of(scores);
    if (row == nullptr) continue;
    Commit commit{.id = row->id, .scores = &scores};
    if (!TakeScores(*row, scores, &commit)) {
      ++stale_outputs_;
      continue;
    }
    row->answered = true;
    commits.push_back(commit);
  }
  for (const SampledRow& row : sent) {
    if (!(row.sample || row.score) || row.answered || !still_there(row)) continue;
    commits.push_back({.id = row.id,
                       .kind = Commit::Kind::kMissing,
                       .output_index = sequences_.find(row.id)->second->outputs()});
  }
  return commits;
}

bool Scheduler::TakeScores(const SampledRow& row, const internal::StepScores& scores,
                           Commit* commit) {
  commit->kind = Commit::Kind::kNonFinite;
  if (scores.flags() & internal::OUTPUT_NON_FINITE) return true;
  commit->kind = Commit::Kind::kScores;
  Sequence& sequence = *sequences_.find(row.id)->second;
  const uint32_t known = static_cast<uint32_t>(sequence.tokens.size());
  // A row scores the tokens after its own; the last one has none.
  const uint32_t end = std::max(sequence.next_score, std::min(row.end + 1, known));
  const uint32_t count = end - sequence.next_score;
  if (!row.score || static_cast<uint32_t>(scores.logprob_size()) != count ||
      (count > 0 && scores.first() != sequence.next_score)) {
    return false;
  }
  sequence.next_score = end;
  commit->last = row.end == known;
  return true;
}

uint32_t Scheduler::ChunkOf(const Sequence& sequence, const StepSchedule& step) const {
  const uint32_t left = limits_.token_budget - step.tokens;
  return std::min({sequence.pending(), left, limits_.max_chunk.value_or(left)});
}

uint32_t Scheduler::BlocksToTake(const Sequence& sequence, uint32_t n_tokens) const {
  const uint64_t needed = CeilDiv(uint64_t{sequence.computed} + n_tokens, limits_.block_tokens);
  return static_cast<uint32_t>(needed - sequence.blocks.size());
}

uint64_t Scheduler::OwedBlocks() const {
  uint64_t owed = 0;
  for (const Sequence* sequence : running_) {
    if (sequence->pending() == 0) continue;
    owed += sequence->known_blocks(limits_.block_tokens) - sequence->blocks.size();
  }
  return owed;
}

uint64_t Scheduler::running_prompt_tokens() const {
  uint64_t tokens = 0;
  for (const Sequence* sequence : running_) tokens += sequence->n_prompt;
  return tokens;
}

uint64_t Scheduler::max_sequence_tokens() const {
  return has_epoch_ && pool_.usable() > 0 ? uint64_t{pool_.usable()} * limits_.block_tokens + 1 : 0;
}

std::optional<SequenceId> Scheduler::OldestWaiting() const {
  std::optional<SequenceId> oldest;
  for (const Sequence* sequence : waiting_)
    oldest = std::min(oldest.value_or(sequence->id), sequence->id);
  return oldest;
}

}  // namespace bitshard
