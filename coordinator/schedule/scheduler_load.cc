// The scheduler's sums over its sequences. They are asked for at every admission and published at
// each request's end under a lock: kept as sequences change instead of added up.
#include <algorithm>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "coordinator/schedule/scheduler.h"

namespace bitshard {
namespace {

// sum + now - before; the unsigned numbers wrap on the way.
void Change(LoadShare& sum, const LoadShare& before, const LoadShare& now) {
  sum.running += now.running - before.running;
  sum.again += now.again - before.again;
  sum.prompt_tokens += now.prompt_tokens - before.prompt_tokens;
  sum.further_tokens += now.further_tokens - before.further_tokens;
  sum.uncomputed_tokens += now.uncomputed_tokens - before.uncomputed_tokens;
  sum.output_tokens += now.output_tokens - before.output_tokens;
  sum.again_tokens += now.again_tokens - before.again_tokens;
  sum.owed_blocks += now.owed_blocks - before.owed_blocks;
}

}  // namespace

uint64_t Scheduler::OwedBlocks(const Sequence& sequence) const {
  if (sequence.pending() == 0) return 0;
  return sequence.known_blocks(limits_.block_tokens) - sequence.blocks.size();
}

LoadShare Scheduler::ShareOf(const Sequence& sequence) const {
  LoadShare share;
  if (sequence.slot.has_value()) {
    share.running = 1;
    share.prompt_tokens = sequence.n_given;
    const bool further = sequence.first_choice.value_or(sequence.id) != sequence.id;
    share.further_tokens = further ? sequence.n_given : 0;
    share.uncomputed_tokens = sequence.n_given - std::min(sequence.n_given, sequence.computed);
    share.output_tokens = sequence.known() - sequence.n_given;
    share.owed_blocks = OwedBlocks(sequence);
  } else if (sequence.has_run) {
    share.again = 1;
    share.again_tokens = sequence.tokens.size();
  }
  return share;
}

void Scheduler::SetShare(Sequence* sequence, const LoadShare& share) {
  if (share == sequence->share) return;
  Change(sequence->level_sums->sum, sequence->share, share);
  Change(total_, sequence->share, share);
  if (sequence->level.batch) Change(batch_, sequence->share, share);
  if (share.running != sequence->share.running) CountRequest(*sequence, share.running > 0);
  sequence->share = share;
}

void Scheduler::CountRequest(const Sequence& sequence, bool runs) {
  if (sequence.first_choice.has_value()) {
    uint32_t& choices = running_choices_[*sequence.first_choice];
    if (runs ? choices++ > 0 : --choices > 0) return;  // others of it run
    if (!runs) running_choices_.erase(*sequence.first_choice);
  }
  runs ? ++running_requests_ : --running_requests_;
}

void Scheduler::FillLevelLoads(std::vector<LevelLoad>* loads) const {
  loads->clear();
  for (const auto& [level, sums] : levels_) {
    if (sums.sum.running + sums.sum.again == 0) continue;
    loads->push_back({.level = level,
                      .running = sums.sum.running,
                      .uncomputed_tokens = sums.sum.uncomputed_tokens,
                      .waiting_again = sums.sum.again,
                      .again_tokens = sums.sum.again_tokens});
  }
}

absl::Status Scheduler::CheckSums() const {
  LoadShare total, batch;
  absl::btree_map<ServiceLevel, LevelSums> levels;
  absl::flat_hash_set<SequenceId> running;  // requests, by their first choice
  for (const auto& [id, sequence] : sequences_) {
    const LoadShare share = ShareOf(*sequence);
    if (share != sequence->share)
      return absl::InternalError(absl::StrCat("sequence ", id, " counts for what it was"));
    LevelSums& level = levels[sequence->level];
    ++level.sequences;
    Change(level.sum, {}, share);
    Change(total, {}, share);
    if (sequence->level.batch) Change(batch, {}, share);
    if (share.running > 0) running.insert(sequence->first_choice.value_or(id));
  }
  if (running.size() != running_requests_) {
    return absl::InternalError(
        absl::StrCat(running.size(), " requests run, ", running_requests_, " are counted"));
  }
  if (total != total_ || batch != batch_ || levels.size() != levels_.size())
    return absl::InternalError("the sums over all sequences are not their sums");
  for (const auto& [key, level] : levels) {
    auto kept = levels_.find(key);
    if (kept == levels_.end() || kept->second.sequences != level.sequences ||
        kept->second.sum != level.sum) {
      return absl::InternalError(absl::StrCat("the sums of level batch=", key.batch, " priority=",
                                              key.priority, " are not those of its sequences"));
    }
  }
  return absl::OkStatus();
}

}  // namespace bitshard
