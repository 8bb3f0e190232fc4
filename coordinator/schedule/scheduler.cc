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
  cache_.emplace(&pool_, limits.block_tokens);
  drops_at_indexing_ = 0;
  if (slot_gen_.size() < limits.max_slots) slot_gen_.resize(limits.max_slots, 0);
  free_slots_.clear();
  for (uint32_t i = 0; i < limits.max_slots; ++i) free_slots_.push_back(i);
  in_slot_.assign(limits.max_slots, nullptr);
}

void Scheduler::EndEpoch() {
  has_epoch_ = false;
  in_flight_.clear();
  while (!running_.empty()) {
    Sequence* sequence = *running_.begin();
    running_.erase(running_.begin());
    LeaveSlot(sequence, /*quarantine_blocks=*/false);
    waiting_.insert(sequence);
    Recount(sequence);
  }
  prefix_evictions_ = prefix_evictions();
  cache_.reset();
  pool_ = BlockPool(0);
  free_slots_.clear();
}

void Scheduler::Add(SequenceSpec spec) {
  const bool embeds = spec.pooling != internal::POOLING_NONE;
  CHECK(!spec.prompt.empty() && (spec.max_tokens > 0 || spec.score_from.has_value()) != embeds)
      << "sequence " << spec.id << " has nothing to do, or too much";
  const SequenceId id = spec.id;
  auto [entry, is_new] = sequences_.try_emplace(id, std::make_unique<Sequence>(std::move(spec)));
  CHECK(is_new) << "sequence " << id << " exists";
  Sequence* sequence = entry->second.get();
  sequence->level_sums = &levels_[sequence->level];
  ++sequence->level_sums->sequences;
  waiting_.Join(sequence);
  waiting_.insert(sequence);
}

void Scheduler::Remove(SequenceId id) {
  auto entry = sequences_.find(id);
  if (entry != sequences_.end()) Index(entry->second.get(), /*torn=*/true);
  Forget(id, /*quarantine_blocks=*/false);
}

void Scheduler::Quarantine(SequenceId id) { Forget(id, /*quarantine_blocks=*/true); }

void Scheduler::SetMask(SequenceId id, std::string mask) {
  auto entry = sequences_.find(id);
  CHECK(entry != sequences_.end() && entry->second->constrained) << "sequence " << id;
  entry->second->mask = std::move(mask);
  Recount(entry->second.get());  // there is more to compute now
}

const Sequence& Scheduler::Get(SequenceId id) const {
  auto entry = sequences_.find(id);
  CHECK(entry != sequences_.end()) << "no sequence " << id;
  return *entry->second;
}

void Scheduler::BackToWaiting(Sequence* victim) {
  running_.erase(victim);
  LeaveSlot(victim, /*quarantine_blocks=*/false);
  waiting_.insert(victim);
  Recount(victim);
  ++victim->preemptions;
  ++preemptions_;
  ++preempted_since_;
}

void Scheduler::LeaveSlot(Sequence* sequence, bool quarantine_blocks) {
  const BlockPool::Owner owner = OwnerOf(*sequence);
  if (quarantine_blocks) {
    for (BlockId id : sequence->blocks) {
      cache_->Drop(id);
      pool_.ReleaseToQuarantine(id, owner);
    }
  } else {
    // The last one first: that is the order in which cached blocks are evicted.
    for (auto id = sequence->blocks.rbegin(); id != sequence->blocks.rend(); ++id)
      pool_.Release(*id, owner);
    if (sequence->cache_place.has_value()) cache_->Touch(*sequence->cache_place);
  }
  sequence->indexed_blocks = 0;
  sequence->cache_place.reset();
  sequence->blocks.clear();
  sequence->computed = 0;
  sequence->in_flight = 0;
  if (sequence->slot.has_value()) {
    in_slot_[sequence->slot->slot] = nullptr;
    free_slots_.push_back(sequence->slot->slot);
  }
  sequence->slot.reset();
}

void Scheduler::Forget(SequenceId id, bool quarantine_blocks) {
  auto entry = sequences_.find(id);
  CHECK(entry != sequences_.end()) << "no sequence " << id;
  Sequence* sequence = entry->second.get();
  if (sequence->slot.has_value()) {
    running_.erase(sequence);
  } else {
    waiting_.erase(sequence);
  }
  waiting_.Leave(sequence);
  LeaveSlot(sequence, quarantine_blocks);
  SetShare(sequence, {});
  if (--sequence->level_sums->sequences == 0) levels_.erase(sequence->level);
  sequences_.erase(entry);
}

std::vector<Commit> Scheduler::CommitStep(const internal::StepResult& result) {
  CHECK(!in_flight_.empty()) << "step " << result.step() << " was never sent";
  PreemptCondemned();
  InFlightStep sent = std::move(in_flight_.front());
  in_flight_.pop_front();

  std::vector<SampledRow*> row_of_slot(in_slot_.size(), nullptr);
  for (SampledRow& row : sent.rows) row_of_slot[row.slot.slot] = &row;
  // A sequence that was preempted or removed since, or came back into another slot, holds the row's
  // slot no more.
  auto still_there = [&](const SampledRow& row) {
    const Sequence* sequence = in_slot_[row.slot.slot];
    return sequence != nullptr && sequence->slot == row.slot;
  };

  // The row that waits for this output; null when nobody does any more.
  auto row_of = [&](const auto& output) -> SampledRow* {
    SampledRow* row = output.slot() < row_of_slot.size() ? row_of_slot[output.slot()] : nullptr;
    if (row != nullptr && row->slot.gen == output.slot_gen()) {
      if (row->failed) return nullptr;
      if (still_there(*row)) return row;
      if (output.flags() & internal::OUTPUT_NON_FINITE)
        SetAside(absl::MakeConstSpan(sent.written).subspan(row->first_written, row->n_written));
    }
    ++stale_outputs_;
    return nullptr;
  };

  // Scores first: the caller has them before the token that comes after them.
  std::vector<Commit> commits;
  for (const internal::StepScores& scores : result.scores()) {
    SampledRow* row = row_of(scores);
    if (row == nullptr) continue;
    Commit commit{.id = row->id, .scores = &scores};
    if (row->scored || !TakeScores(*row, scores, &commit)) {
      ++stale_outputs_;
      continue;
    }
    row->scored = true;
    row->failed = commit.kind == Commit::Kind::kNonFinite;
    commits.push_back(commit);
  }
  for (const internal::StepEmbedding& embedding : result.embeddings()) {
    SampledRow* row = row_of(embedding);
    if (row == nullptr) continue;
    const bool failed = (embedding.flags() & internal::OUTPUT_NON_FINITE) != 0;
    if (!row->embeds || row->embedded || (embedding.values().empty() && !failed)) {
      ++stale_outputs_;
      continue;
    }
    row->embedded = true;
    row->failed = failed;
    commits.push_back({.id = row->id,
                       .kind = failed ? Commit::Kind::kNonFinite : Commit::Kind::kEmbedding,
                       .embedding = &embedding});
  }
  for (const internal::StepOutput& output : result.outputs()) {
    SampledRow* row = row_of(output);
    if (row == nullptr) continue;
    Sequence* sequence = in_slot_[row->slot.slot];
    Commit commit{.id = row->id, .output_index = sequence->outputs(), .output = &output};
    const bool complete = row->sample ? row->sampled : row->scored || row->embedded;
    if ((output.flags() & internal::OUTPUT_NON_FINITE) && !complete) {
      commit.kind = Commit::Kind::kNonFinite;  // in any row, also one that samples nothing
      row->failed = true;
    } else if (!row->sample || complete || (row->score && !row->scored) ||
               output.output_index() != sequence->outputs() ||
               output.token() > uint32_t{std::numeric_limits<int32_t>::max()}) {
      ++stale_outputs_;
      continue;
    } else if (output.flags() & internal::OUTPUT_NO_TOKEN_ALLOWED) {
      commit.kind = Commit::Kind::kNoneAllowed;
      row->failed = true;
    } else {
      sequence->tokens.push_back(output.token());
      sequence->mask.clear();  // it was this one's
      --sequence->in_flight;
      row->sampled = true;
    }
    commits.push_back(commit);
  }
  for (const SampledRow& row : sent.rows) {
    const bool complete =
        row.sampled == row.sample && row.scored == row.score && row.embedded == row.embeds;
    if (complete || row.failed || !still_there(row)) continue;
    commits.push_back({.id = row.id,
                       .kind = Commit::Kind::kMissing,
                       .output_index = in_slot_[row.slot.slot]->outputs()});
  }
  return commits;
}

bool Scheduler::TakeScores(const SampledRow& row, const internal::StepScores& scores,
                           Commit* commit) {
  commit->kind = Commit::Kind::kNonFinite;
  if (scores.flags() & internal::OUTPUT_NON_FINITE) return true;
  commit->kind = Commit::Kind::kScores;
  Sequence& sequence = *in_slot_[row.slot.slot];
  // A row scores the tokens after its own; the last of the prompt has none.
  const uint32_t end = std::max(sequence.next_score, std::min(row.end + 1, sequence.n_prompt));
  const uint32_t count = end - sequence.next_score;
  if (!row.score || static_cast<uint32_t>(scores.logprob_size()) != count ||
      (count > 0 && scores.first() != sequence.next_score)) {
    return false;
  }
  sequence.next_score = end;
  commit->last = row.end == sequence.n_prompt;
  return true;
}

uint64_t Scheduler::max_sequence_tokens() const {
  return has_epoch_ && pool_.usable() > 0 ? uint64_t{pool_.usable()} * limits_.block_tokens + 1 : 0;
}

std::optional<SequenceId> Scheduler::OldestWaiting() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.oldest()->id;
}

}  // namespace bitshard
