// Scheduler::Schedule: who gets rows in a step, and which blocks they get for them.
#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "coordinator/schedule/scheduler.h"
#include "kernels/base/check.h"

namespace bitshard {
namespace {

constexpr ServiceLevel kFirstBatchLevel = {.batch = true,
                                           .priority = std::numeric_limits<int32_t>::min()};

// A rank is called hung when nothing moves for seconds (--stall-timeout), and attention over a long
// context is one launch: a step reads no more than a whole budget of tokens at this context.
// Longer ones come in shorter chunks, of at least so many tokens.
constexpr uint64_t kContextOfWholeSteps = 32768;
constexpr uint64_t kLeastChunk = 16;

void Count(const ScheduledRow& row, int sign, StepLoad& load) {
  const uint32_t tokens = static_cast<uint32_t>(sign) * row.n_tokens;  // wraps, as it should
  (row.is_decode() ? load.decode_rows : load.prefill_tokens) += tokens;
  load.context_tokens += static_cast<uint64_t>(sign) * StepLoad::ContextOf(row.start, row.n_tokens);
}

}  // namespace

uint64_t EnteringBytes(const Sequence& sequence, uint32_t block_tokens) {
  // Beside tokens, blocks and sampling: a few numbers, the lengths, the tags.
  constexpr uint64_t kRest = 64;
  const uint64_t ids = sequence.tokens.size() + sequence.known_blocks(block_tokens);
  return ids * kMaxIdBytes + sequence.sampling.ByteSizeLong() + kRest;
}

StepSchedule Scheduler::Schedule(bool allow_empty, const PrefillLimit* limit) {
  CHECK(has_epoch_) << "no group to schedule for";
  PreemptCondemned();
  // What this step writes is found from the next one on: within a step no row reads another's.
  IndexRunning();
  ++schedules_;
  StepSchedule step;
  step.rows.reserve(running_.size() + 1);
  ScheduleLevels(/*batch=*/false, limit, step);
  // What waits still could use all that a batch sequence would take. Among themselves batch
  // sequences need no limit.
  if (waiting_.empty() || waiting_.first()->level.batch)
    ScheduleLevels(/*batch=*/true, step.load.decode_rows > 0 ? limit : nullptr, step);
  step.preempted = std::exchange(preempted_since_, 0);

  if (step.rows.empty() && !allow_empty) return step;
  InFlightStep sent;
  sent.rows.reserve(step.rows.size());
  sent.written.reserve(step.rows.size());
  for (const ScheduledRow& row : step.rows) {
    const auto written =
        absl::MakeConstSpan(row.sequence->blocks).subspan(row.start / limits_.block_tokens);
    sent.rows.push_back({.id = row.sequence->id,
                         .slot = row.slot,
                         .sample = row.sample,
                         .score = row.score,
                         .embeds = row.embeds,
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
  ScheduleDecodes(batch, batch ? limit : nullptr, step);
  SchedulePrompts(batch, limit, step);
}

void Scheduler::ScheduleDecodes(bool batch, const PrefillLimit* limit, StepSchedule& step) {
  prompts_.clear();
  auto it = running_.begin();
  if (batch) {
    it = running_.end();
    while (it != running_.begin() && (*std::prev(it))->level.batch) --it;
  }
  for (; it != running_.end() && (*it)->level.batch == batch; ++it) {
    if (step.tokens >= limits_.token_budget) return;
    Sequence* sequence = *it;
    const uint32_t pending = sequence->pending();
    if (pending > 1) prompts_.push_back(sequence);
    if (pending != 1) continue;
    if (ChunkOf(*sequence, limit, step) == 0) return;
    // It takes out only sequences that come later, or this one, which then is the last.
    if (!MakeRoom(sequence, /*n_tokens=*/1, step)) return;
    AddRow(sequence, /*n_tokens=*/1, /*enters=*/false, step);
  }
}

void Scheduler::SchedulePrompts(bool batch, const PrefillLimit* limit, StepSchedule& step) {
  // What was just preempted would only come straight back; but somebody must run. Who is pushed out
  // below is a batch sequence and enters in no step that has pushed one out.
  bool may_enter = step.preempted == 0;
  for (Sequence* sequence : prompts_) {
    if (!sequence->slot.has_value()) break;  // preempted since, as all behind it
    if (may_enter) may_enter = AdmitWaiting(/*end=*/sequence->level, limit, step);
    if (step.limited) return;
    const uint32_t n_tokens = ChunkOf(*sequence, limit, step);
    if (n_tokens == 0) {
      step.limited = step.tokens < limits_.token_budget && !waiting_.empty();
      return;
    }
    const uint32_t preempted = step.preempted;
    if (!MakeRoom(sequence, n_tokens, step)) break;  // it was the last in the order
    if (step.preempted > preempted) may_enter = false;
    AddRow(sequence, n_tokens, /*enters=*/false, step);
  }
  if (!may_enter && !running_.empty()) return;
  AdmitWaiting(batch ? std::nullopt : std::make_optional(kFirstBatchLevel), limit, step);
}

bool Scheduler::AdmitWaiting(const std::optional<ServiceLevel>& end, const PrefillLimit* limit,
                             StepSchedule& step) {
  while (!waiting_.empty()) {
    Sequence* sequence = waiting_.first();
    if (end.has_value() && !(sequence->level < *end)) return true;
    if (step.tokens >= limits_.token_budget) return false;
    if (sequence->most_blocks(limits_.block_tokens) > pool_.usable()) {
      step.unfit.push_back(sequence->id);
      Forget(sequence->id, /*quarantine_blocks=*/false);
      continue;
    }
    const auto no_room = [&] {
      step.no_room = true;
      step.next_is_batch = sequence->level.batch;
      return false;
    };
    const bool may_push =
        !sequence->level.batch && !running_.empty() && (*running_.rbegin())->level.batch;
    // Whatever is cached of it: at least one block is not.
    if ((free_slots_.empty() || total_.owed_blocks >= pool_.available()) && !may_push)
      return no_room();
    PrefixCache::Hit hit = FindCached(*sequence);
    // The first that does not fit holds up the ones behind it, so that a large request is not
    // passed by for ever.
    const bool fits = Fits(*sequence, hit);
    if (!fits && !(may_push && FitsWithoutBatch(*sequence, hit))) return no_room();
    const uint64_t bytes = EnteringBytes(*sequence, limits_.block_tokens);
    if (step.entering_bytes > 0 && step.entering_bytes + bytes > limits_.max_entering_bytes)
      return false;

    sequence->computed = static_cast<uint32_t>(hit.blocks.size()) * limits_.block_tokens;
    const uint32_t n_tokens = ChunkOf(*sequence, limit, step);
    if (n_tokens == 0) {
      sequence->computed = 0;
      step.limited = true;
      return false;
    }
    while (!Fits(*sequence, hit)) Preempt(*running_.rbegin(), step);
    Enter(sequence, std::move(hit));
    AddRow(sequence, n_tokens, /*enters=*/true, step);
    step.entering_bytes += bytes;
  }
  return true;
}

void Scheduler::Enter(Sequence* sequence, PrefixCache::Hit hit) {
  for (BlockId id : hit.blocks) pool_.AddReference(id, OwnerOf(*sequence));
  sequence->indexed_blocks = static_cast<uint32_t>(hit.blocks.size());
  sequence->blocks = std::move(hit.blocks);
  sequence->cache_place = hit.place;
  if (!sequence->has_run && limits_.prefix_cache) {
    prefix_queries_ += sequence->tokens.size();
    prefix_hits_ += sequence->computed;
  }
  waiting_.erase(sequence);
  running_.insert(sequence);
  const uint32_t slot = free_slots_.front();
  free_slots_.pop_front();
  in_slot_[slot] = sequence;
  sequence->slot = SlotRef{slot, ++slot_gen_[slot]};
}

bool Scheduler::Fits(const Sequence& sequence, const PrefixCache::Hit& hit) const {
  if (free_slots_.empty()) return false;
  const auto shared = std::count_if(hit.blocks.begin(), hit.blocks.end(),
                                    [this](BlockId id) { return pool_.refcount(id) > 0; });
  const uint64_t wanted =
      sequence.known_blocks(limits_.block_tokens) - static_cast<uint64_t>(shared);
  return total_.owed_blocks + wanted <= pool_.available();
}

bool Scheduler::FitsWithoutBatch(const Sequence& sequence, const PrefixCache::Hit& hit) const {
  const auto shared = std::count_if(hit.blocks.begin(), hit.blocks.end(),
                                    [this](BlockId id) { return pool_.has_firm_owner(id); });
  const uint64_t wanted =
      sequence.known_blocks(limits_.block_tokens) - static_cast<uint64_t>(shared);
  return total_.owed_blocks - batch_.owed_blocks + wanted <=
         uint64_t{pool_.available()} + pool_.reclaimable();
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
  if (const uint32_t wanted = BlocksToTake(*sequence, n_tokens); wanted > 0) {
    absl::StatusOr<std::vector<BlockId>> blocks = cache_->Allocate(wanted, OwnerOf(*sequence));
    CHECK_OK(blocks.status());
    row.new_blocks = *std::move(blocks);
    sequence->blocks.insert(sequence->blocks.end(), row.new_blocks.begin(), row.new_blocks.end());
  }
  // The last token of a prompt has none after it to score.
  row.score = sequence->scores_left() &&
              (!sequence->samples || sequence->computed + 1 < sequence->n_prompt);
  row.sample = sequence->samples && sequence->computed + n_tokens == sequence->known();
  const bool pools = sequence->pooling != internal::POOLING_NONE;
  row.embeds = pools && sequence->computed + n_tokens == sequence->n_prompt;
  row.pool = row.embeds || sequence->pooling == internal::POOLING_MEAN;
  sequence->computed += n_tokens;
  sequence->has_run = true;
  sequence->last_schedule = schedules_;
  if (row.sample) {
    row.output_index = sequence->outputs() + sequence->in_flight;
    ++sequence->in_flight;
  }
  Recount(sequence);
  waiting_.Charge(sequence, row.start, n_tokens,
                  row.sample ? std::optional<uint32_t>(row.output_index) : std::nullopt);
  step.tokens += n_tokens;
  Count(row, /*sign=*/1, step.load);
  step.rows.push_back(std::move(row));
}

void Scheduler::Preempt(Sequence* victim, StepSchedule& step) {
  if (victim->last_schedule == schedules_) {
    // Who is preempted comes last in the order of service, and so do its rows.
    auto row = std::find_if(step.rows.rbegin(), step.rows.rend(),
                            [&](const ScheduledRow& r) { return r.sequence == victim; });
    CHECK(row != step.rows.rend()) << "sequence " << victim->id << " has lost its row";
    step.tokens -= row->n_tokens;
    Count(*row, /*sign=*/-1, step.load);
    step.rows.erase(std::prev(row.base()));
  }
  BackToWaiting(victim);
  ++step.preempted;
}

uint32_t Scheduler::ChunkOf(const Sequence& sequence, const PrefillLimit* limit,
                            const StepSchedule& step) const {
  const uint32_t left = limits_.token_budget - step.tokens;
  uint32_t chunk = std::min({sequence.pending(), left, limits_.max_chunk.value_or(left)});
  const uint64_t reads = limits_.token_budget * kContextOfWholeSteps;
  const uint64_t reads_left = reads - std::min(reads, step.load.context_tokens);
  const uint64_t fit = reads_left / std::max<uint64_t>(sequence.computed + chunk, 1);
  chunk = static_cast<uint32_t>(std::min<uint64_t>(chunk, std::max(fit, kLeastChunk)));
  if (limit == nullptr || step.load.decode_rows == 0) return chunk;
  return std::min(chunk, (*limit)(step.load, sequence.computed));
}

uint32_t Scheduler::BlocksToTake(const Sequence& sequence, uint32_t n_tokens) const {
  const uint64_t needed = CeilDiv(uint64_t{sequence.computed} + n_tokens, limits_.block_tokens);
  return static_cast<uint32_t>(needed - sequence.blocks.size());
}

}  // namespace bitshard
