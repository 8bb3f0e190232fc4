#include "coordinator/schedule/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/check.h"

namespace bitshard {
namespace {

void Count(const ScheduledRow& row, int sign, StepLoad& load) {
  const uint32_t tokens = static_cast<uint32_t>(sign) * row.n_tokens;  // wraps, as it should
  (row.is_decode() ? load.decode_rows : load.prefill_tokens) += tokens;
  load.context_tokens += static_cast<uint64_t>(sign) * StepLoad::ContextOf(row.start, row.n_tokens);
}

}  // namespace

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
  prefix_evictions_ = prefix_evictions();
  cache_.reset();
  pool_ = BlockPool(0);
  free_slots_.clear();
}

void Scheduler::Add(SequenceSpec spec) {
  CHECK(!spec.prompt.empty() && (spec.max_tokens > 0 || spec.score_from.has_value()))
      << "sequence " << spec.id << " has nothing to do";
  const SequenceId id = spec.id;
  auto [entry, is_new] = sequences_.try_emplace(id, std::make_unique<Sequence>(std::move(spec)));
  CHECK(is_new) << "sequence " << id << " exists";
  waiting_.Join(entry->second.get());
  waiting_.insert(entry->second.get());
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
}

const Sequence& Scheduler::Get(SequenceId id) const {
  auto entry = sequences_.find(id);
  CHECK(entry != sequences_.end()) << "no sequence " << id;
  return *entry->second;
}

StepSchedule Scheduler::Schedule(bool allow_empty, const PrefillLimit* limit) {
  CHECK(has_epoch_) << "no group to schedule for";
  PreemptCondemned();
  // What this step writes is found from the next one on: within a step no row reads another's.
  IndexRunning();
  StepSchedule step;
  ScheduleLevels(/*batch=*/false, limit, step);
  // What waits still could use all that a batch sequence would take. Among themselves batch
  // sequences need no limit.
  if (waiting_.empty() || waiting_.first()->level.batch)
    ScheduleLevels(/*batch=*/true, step.load.decode_rows > 0 ? limit : nullptr, step);
  step.preempted = std::exchange(preempted_since_, 0);

  if (step.rows.empty() && !allow_empty) return step;
  InFlightStep sent;
  sent.rows.reserve(step.rows.size());
  for (const ScheduledRow& row : step.rows) {
    const auto written =
        absl::MakeConstSpan(row.sequence->blocks).subspan(row.start / limits_.block_tokens);
    sent.rows.push_back({.id = row.sequence->id,
                         .slot = row.slot,
                         .sample = row.sample,
                         .score = row.score,
                         .end = row.start + row.n_tokens,
                         .first_written = sent.written.size(),
                         .n_written = written.size()});
    sent.written.insert(sent.written.end(), written.begin(), written.end());
  }
  in_flight_.push_back(std::move(sent));
  return step;
}

void Scheduler::ScheduleLevels(bool batch, const PrefillLimit* limit, StepSchedule& step) {
  // Batch decodes are rows that may be left out; the others may not.
  ScheduleRunning(batch, /*decodes=*/true, batch ? limit : nullptr, step);
  ScheduleRunning(batch, /*decodes=*/false, limit, step);
  // What was just preempted would only come straight back; but somebody must run.
  if (step.preempted == 0 || running_.empty()) AdmitWaiting(batch, limit, step);
}

void Scheduler::ScheduleRunning(bool batch, bool decodes, const PrefillLimit* limit,
                                StepSchedule& step) {
  for (auto it = running_.begin(); it != running_.end() && step.tokens < limits_.token_budget;) {
    Sequence* sequence = *it;
    const uint32_t pending = sequence->pending();
    if (sequence->level.batch != batch || pending == 0 || (pending == 1) != decodes) {
      ++it;
      continue;
    }
    const uint32_t n_tokens = ChunkOf(*sequence, limit, step);
    if (n_tokens == 0) return;
    if (!MakeRoom(sequence, n_tokens, step)) return;  // it was the last in the order
    AddRow(sequence, n_tokens, /*enters=*/false, step);
    ++it;  // MakeRoom takes out only sequences that come later
  }
}

void Scheduler::AdmitWaiting(bool batch, const PrefillLimit* limit, StepSchedule& step) {
  uint64_t owed = OwedBlocks();
  while (!waiting_.empty() && step.tokens < limits_.token_budget) {
    Sequence* sequence = waiting_.first();
    if (sequence->level.batch != batch) return;
    if (sequence->most_blocks(limits_.block_tokens) > pool_.usable()) {
      step.unfit.push_back(sequence->id);
      Forget(sequence->id, /*quarantine_blocks=*/false);
      continue;
    }
    const bool may_push = !batch && !running_.empty() && (*running_.rbegin())->level.batch;
    if ((free_slots_.empty() || owed >= pool_.available()) && !may_push) {
      step.no_room = true;  // whatever is cached of it: at least one block is not
      return;
    }
    const PrefixCache::Hit hit = FindCached(*sequence);
    const auto shared = std::count_if(hit.blocks.begin(), hit.blocks.end(),
                                      [this](BlockId id) { return pool_.refcount(id) > 0; });
    const uint64_t wanted =
        sequence->known_blocks(limits_.block_tokens) - static_cast<uint64_t>(shared);
    // All that it knows must fit beside what the running ones still need for what they know; the
    // first that does not fit holds up the ones behind it, so that a large request is not passed by
    // for ever.
    if (free_slots_.empty() || owed + wanted > pool_.available()) {
      if (!may_push || !PushBatchOut(*sequence, hit, step)) {
        step.no_room = true;
        return;
      }
      owed = OwedBlocks();
      continue;
    }

    sequence->computed = static_cast<uint32_t>(hit.blocks.size()) * limits_.block_tokens;
    const uint32_t n_tokens = ChunkOf(*sequence, limit, step);
    if (n_tokens == 0) {
      sequence->computed = 0;
      step.limited = true;
      return;
    }
    for (BlockId id : hit.blocks) pool_.AddReference(id);
    sequence->blocks = hit.blocks;
    sequence->indexed_blocks = static_cast<uint32_t>(hit.blocks.size());
    sequence->cache_place = hit.place;
    if (!sequence->has_run && limits_.prefix_cache) {
      prefix_queries_ += sequence->tokens.size();
      prefix_hits_ += sequence->computed;
    }
    waiting_.erase(sequence);
    running_.insert(sequence);
    const uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    sequence->slot = SlotRef{slot, ++slot_gen_[slot]};
    AddRow(sequence, n_tokens, /*enters=*/true, step);
    owed += OwedBlocks(*sequence);
  }
}

bool Scheduler::PushBatchOut(const Sequence& sequence, const PrefixCache::Hit& hit,
                             StepSchedule& step) {
  uint64_t owed = sequence.known_blocks(limits_.block_tokens), room = pool_.available();
  absl::flat_hash_map<BlockId, uint32_t> batch_owners;
  for (const Sequence* other : running_) {
    if (!other->level.batch) {
      owed += OwedBlocks(*other);
      continue;
    }
    for (BlockId id : other->blocks) {
      if (++batch_owners[id] == pool_.refcount(id)) ++room;
    }
  }
  for (BlockId id : hit.blocks) {
    auto owners = batch_owners.find(id);
    if (pool_.refcount(id) > (owners == batch_owners.end() ? 0 : owners->second)) --owed;
  }
  if (owed > room) return false;
  Preempt(*running_.rbegin(), step);
  return true;
}

bool Scheduler::MakeRoom(Sequence* sequence, uint32_t n_tokens, StepSchedule& step) {
  const uint32_t wanted = BlocksToTake(*sequence, n_tokens);
  while (pool_.available() < wanted) {
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
  absl::StatusOr<std::vector<BlockId>> blocks = cache_->Allocate(BlocksToTake(*sequence, n_tokens));
  CHECK_OK(blocks.status());
  row.new_blocks = *std::move(blocks);
  sequence->blocks.insert(sequence->blocks.end(), row.new_blocks.begin(), row.new_blocks.end());
  // The last token of a prompt has none after it to score.
  row.score = sequence->scores_left() &&
              (!sequence->samples || sequence->computed + 1 < sequence->n_prompt);
  row.sample = sequence->samples && sequence->computed + n_tokens == sequence->known();
  sequence->computed += n_tokens;
  sequence->has_run = true;
  if (row.sample) {
    row.output_index = sequence->outputs() + sequence->in_flight;
    ++sequence->in_flight;
  }
  waiting_.Charge(sequence, row.start, n_tokens,
                  row.sample ? std::optional<uint32_t>(row.output_index) : std::nullopt);
  step.tokens += n_tokens;
  Count(row, /*sign=*/1, step.load);
  step.rows.push_back(std::move(row));
}

void Scheduler::Preempt(Sequence* victim, StepSchedule& step) {
  auto row = std::find_if(step.rows.begin(), step.rows.end(),
                          [&](const ScheduledRow& r) { return r.sequence == victim; });
  if (row != step.rows.end()) {
    step.tokens -= row->n_tokens;
    Count(*row, /*sign=*/-1, step.load);
    step.rows.erase(row);
  }
  BackToWaiting(victim);
  ++step.preempted;
}

void Scheduler::BackToWaiting(Sequence* victim) {
  running_.erase(victim);
  LeaveSlot(victim, /*quarantine_blocks=*/false);
  waiting_.insert(victim);
  ++victim->preemptions;
  ++preemptions_;
  ++preempted_since_;
}

void Scheduler::LeaveSlot(Sequence* sequence, bool quarantine_blocks) {
  if (quarantine_blocks) {
    for (BlockId id : sequence->blocks) {
      cache_->Drop(id);
      pool_.ReleaseToQuarantine(id);
    }
  } else {
    // The last one first: that is the order in which cached blocks are evicted.
    for (auto id = sequence->blocks.rbegin(); id != sequence->blocks.rend(); ++id)
      pool_.Release(*id);
    if (sequence->cache_place.has_value()) cache_->Touch(*sequence->cache_place);
  }
  sequence->indexed_blocks = 0;
  sequence->cache_place.reset();
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
  if (sequence->slot.has_value()) {
    running_.erase(sequence);
  } else {
    waiting_.erase(sequence);
  }
  waiting_.Leave(sequence);
  LeaveSlot(sequence, quarantine_blocks);
  sequences_.erase(entry);
}

std::vector<Commit> Scheduler::CommitStep(const internal::StepResult& result) {
  CHECK(!in_flight_.empty()) << "step " << result.step() << " was never sent";
  PreemptCondemned();
  InFlightStep sent = std::move(in_flight_.front());
  in_flight_.pop_front();

  absl::flat_hash_map<uint32_t, SampledRow*> row_of_slot;
  for (SampledRow& row : sent.rows) row_of_slot.emplace(row.slot.slot, &row);
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
  for (const internal::StepOutput& output : result.outputs()) {
    SampledRow* row = row_of(output);
    if (row == nullptr) continue;
    Sequence* sequence = sequences_.find(row->id)->second.get();
    Commit commit{.id = row->id, .output_index = sequence->outputs(), .output = &output};
    const bool complete = row->sample ? row->sampled : row->scored;
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
    const bool complete = row.sampled == row.sample && row.scored == row.score;
    if (complete || row.failed || !still_there(row)) continue;
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

uint32_t Scheduler::ChunkOf(const Sequence& sequence, const PrefillLimit* limit,
                            const StepSchedule& step) const {
  const uint32_t left = limits_.token_budget - step.tokens;
  const uint32_t chunk = std::min({sequence.pending(), left, limits_.max_chunk.value_or(left)});
  if (limit == nullptr || step.load.decode_rows == 0) return chunk;
  return std::min(chunk, (*limit)(step.load, sequence.computed));
}

uint32_t Scheduler::BlocksToTake(const Sequence& sequence, uint32_t n_tokens) const {
  const uint64_t needed = CeilDiv(uint64_t{sequence.computed} + n_tokens, limits_.block_tokens);
  return static_cast<uint32_t>(needed - sequence.blocks.size());
}

uint64_t Scheduler::OwedBlocks(const Sequence& sequence) const {
  if (sequence.pending() == 0) return 0;
  return sequence.known_blocks(limits_.block_tokens) - sequence.blocks.size();
}

uint64_t Scheduler::OwedBlocks() const {
  uint64_t owed = 0;
  for (const Sequence* sequence : running_) owed += OwedBlocks(*sequence);
  return owed;
}

uint64_t Scheduler::running_prompt_tokens() const {
  uint64_t tokens = 0;
  for (const Sequence* sequence : running_) tokens += sequence->n_prompt;
  return tokens;
}

uint64_t Scheduler::uncomputed_prompt_tokens() const {
  uint64_t tokens = 0;
  for (const Sequence* sequence : running_)
    tokens += sequence->n_prompt - std::min(sequence->n_prompt, sequence->computed);
  return tokens;
}

uint64_t Scheduler::max_sequence_tokens() const {
  return has_epoch_ && pool_.usable() > 0 ? uint64_t{pool_.usable()} * limits_.block_tokens + 1 : 0;
}

std::optional<SequenceId> Scheduler::OldestWaiting() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.oldest()->id;
}

}  // namespace bitshard
