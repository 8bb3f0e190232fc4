// Scheduler::CheckInvariants: what README.md of this folder promises, checked from scratch.
#include <vector>

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
  if (s.slot.has_value()) {
    if (s.blocks.size() != CeilDiv(s.computed, block_tokens))
      return Broken(s, "blocks do not fit computed");
  } else if (s.computed != 0 || s.in_flight != 0 || !s.blocks.empty()) {
    return Broken(s, "waits, but holds something");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Scheduler::CheckInvariants() const {
  if (running_.size() + waiting_.size() != sequences_.size()) {
    return absl::InternalError(absl::StrCat(running_.size(), " running + ", waiting_.size(),
                                            " waiting != ", sequences_.size(), " sequences"));
  }
  std::vector<const std::vector<BlockId>*> tables;
  absl::flat_hash_set<BlockId> seen_blocks;
  absl::flat_hash_set<uint32_t> seen_slots;
  for (uint32_t slot : free_slots_) {
    if (!seen_slots.insert(slot).second)
      return absl::InternalError(absl::StrCat("slot ", slot, " is free twice"));
  }
  for (const auto& [id, sequence] : sequences_) {
    const Sequence& s = *sequence;
    if (s.id != id) return Broken(s, "is filed under another id");
    if (!(s.slot.has_value() ? running_ : waiting_).contains(sequence.get()))
      return Broken(s, "is in no queue");
    RETURN_IF_ERROR(CheckSequence(s, limits_.block_tokens));
    if (s.slot.has_value()) {
      if (s.slot->slot >= limits_.max_slots || s.slot->gen != slot_gen_[s.slot->slot]) {
        return Broken(s, "has a slot that is not its own");
      }
      if (!seen_slots.insert(s.slot->slot).second) return Broken(s, "shares its slot");
    }
    for (BlockId block : s.blocks) {
      if (!seen_blocks.insert(block).second) return Broken(s, absl::StrCat("shares block ", block));
    }
    tables.push_back(&s.blocks);
  }
  if (has_epoch_ && seen_slots.size() != limits_.max_slots) {
    return absl::InternalError(
        absl::StrCat("of ", limits_.max_slots, " slots only ", seen_slots.size(), " are known"));
  }
  if (!has_epoch_ && (!running_.empty() || !in_flight_.empty())) {
    return absl::InternalError("something runs without a group");
  }
  return pool_.CheckInvariants(tables);
}

}  // namespace bitshard
