// Scheduler::CheckInvariants: what README.md of this folder promises, checked from scratch.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "coordinator/schedule/scheduler.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

absl::Status Broken(const Sequence& s, absl::string_view what) {
  return absl::InternalError(absl::StrCat("sequence ", s.id, ": ", what, " (tokens ",
                                          s.tokens.size(), ", prompt ", s.n_prompt, ", computed ",
                                          s.computed, ", in flight ", s.in_flight, ", blocks ",
                                          s.blocks.size(), ", max_tokens ", s.max_tokens, ")"));
}

absl::Status CheckSequence(const Sequence& s, uint32_t block_tokens) {
  if (s.tokens.size() < s.n_prompt) return Broken(s, "lost prompt tokens");
  if (s.outputs() + s.in_flight > s.max_tokens) return Broken(s, "more outputs than max_tokens");
  if (s.computed > s.known()) return Broken(s, "computed has passed known");
  if (s.constrained && s.in_flight > 1)
    return Broken(s, "draws an output before its mask is known");
  if (s.slot.has_value()) {
    if (s.blocks.size() != CeilDiv(s.computed, block_tokens))
      return Broken(s, "blocks do not fit computed");
    if (s.indexed_blocks * block_tokens > std::min<size_t>(s.computed, s.tokens.size()))
      return Broken(s, "has more in the prefix cache than is computed and committed");
  } else if (s.computed != 0 || s.in_flight != 0 || !s.blocks.empty() || s.indexed_blocks != 0) {
    return Broken(s, "waits, but holds something");
  }
  return absl::OkStatus();
}

// Two tables may name a block at one place only, and only when all up to its end is the same.
absl::Status CheckShared(const Sequence& a, const Sequence& b, size_t place,
                         uint32_t block_tokens) {
  const size_t end = (place + 1) * block_tokens;
  if (a.cache_seed != b.cache_seed || a.tokens.size() < end || b.tokens.size() < end ||
      b.blocks[place] != a.blocks[place] ||
      !std::equal(a.tokens.begin(), a.tokens.begin() + static_cast<std::ptrdiff_t>(end),
                  b.tokens.begin())) {
    return Broken(a, absl::StrCat("shares block ", a.blocks[place], " with sequence ", b.id,
                                  ", which holds other tokens"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Scheduler::CheckInvariants() const {
  if (running_.size() + waiting_.size() != sequences_.size()) {
    return absl::InternalError(absl::StrCat(running_.size(), " running + ", waiting_.size(),
                                            " waiting != ", sequences_.size(), " sequences"));
  }
  RETURN_IF_ERROR(waiting_.CheckInvariants());
  RETURN_IF_ERROR(CheckSums());
  std::vector<const std::vector<BlockId>*> tables, giving_way;
  absl::flat_hash_map<BlockId, const Sequence*> seen_blocks;
  absl::flat_hash_set<uint32_t> seen_slots;
  for (uint32_t slot : free_slots_) {
    if (!seen_slots.insert(slot).second)
      return absl::InternalError(absl::StrCat("slot ", slot, " is free twice"));
  }
  for (const auto& [id, sequence] : sequences_) {
    const Sequence& s = *sequence;
    if (s.id != id) return Broken(s, "is filed under another id");
    const bool queued =
        s.slot.has_value() ? running_.contains(sequence.get()) : waiting_.contains(sequence.get());
    if (!queued) return Broken(s, "is in no queue");
    RETURN_IF_ERROR(CheckSequence(s, limits_.block_tokens));
    if (s.slot.has_value()) {
      if (s.slot->slot >= limits_.max_slots || s.slot->gen != slot_gen_[s.slot->slot]) {
        return Broken(s, "has a slot that is not its own");
      }
      if (!seen_slots.insert(s.slot->slot).second) return Broken(s, "shares its slot");
      if (in_slot_[s.slot->slot] != &s) return Broken(s, "is not found by its slot");
    }
    absl::flat_hash_set<BlockId> own_blocks;
    for (size_t i = 0; i < s.blocks.size(); ++i) {
      if (!own_blocks.insert(s.blocks[i]).second)
        return Broken(s, absl::StrCat("holds block ", s.blocks[i], " twice"));
      auto [other, is_new] = seen_blocks.emplace(s.blocks[i], &s);
      if (is_new) continue;
      if (i >= other->second->blocks.size() || !limits_.prefix_cache)
        return Broken(s, absl::StrCat("shares block ", s.blocks[i]));
      RETURN_IF_ERROR(CheckShared(s, *other->second, i, limits_.block_tokens));
    }
    tables.push_back(&s.blocks);
    if (s.level.batch) giving_way.push_back(&s.blocks);
  }
  if (has_epoch_ && seen_slots.size() != limits_.max_slots) {
    return absl::InternalError(
        absl::StrCat("of ", limits_.max_slots, " slots only ", seen_slots.size(), " are known"));
  }
  if (!has_epoch_ && (!running_.empty() || !in_flight_.empty())) {
    return absl::InternalError("something runs without a group");
  }
  RETURN_IF_ERROR(pool_.CheckInvariants(tables, giving_way));
  return has_epoch_ ? cache_->CheckInvariants() : absl::OkStatus();
}

}  // namespace bitshard
