#include "coordinator/schedule/block_pool.h"

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"

namespace bitshard {

BlockPool::BlockPool(uint32_t total_blocks) : blocks_(total_blocks) {
  free_.reserve(total_blocks);
  for (uint32_t i = total_blocks; i > 0; --i)
    free_.push_back(i - 1);  // block 0 is given away first
}

absl::StatusOr<std::vector<BlockId>> BlockPool::Allocate(uint32_t count, Owner owner) {
  if (count > free_.size()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(count, " KV blocks wanted, ", free_.size(), " of ", total(), " are free"));
  }
  std::vector<BlockId> ids;
  ids.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const BlockId id = free_.back();
    free_.pop_back();
    Block& block = blocks_[id];
    block.state = State::kUsed;
    block.refcount = 1;
    block.giving_way = owner == Owner::kGivesWay ? 1 : 0;
    reclaimable_ += block.giving_way;
    ids.push_back(id);
  }
  return ids;
}

BlockPool::Block& BlockPool::Used(BlockId id) {
  CHECK_LT(id, blocks_.size());
  CHECK(blocks_[id].state == State::kUsed) << "block " << id << " has no owner";
  return blocks_[id];
}

void BlockPool::AddReference(BlockId id, Owner owner) {
  CHECK_LT(id, blocks_.size());
  Block& block = blocks_[id];
  const bool before = Reclaimable(block);
  if (block.state == State::kCached) {
    cached_.erase(block.place);
    block.state = State::kUsed;
  }
  ++Used(id).refcount;
  if (owner == Owner::kGivesWay) ++block.giving_way;
  reclaimable_ += Reclaimable(block);
  reclaimable_ -= before;
}

void BlockPool::Release(BlockId id, Owner owner) {
  Block& block = Used(id);
  reclaimable_ -= Reclaimable(block);
  const uint32_t alike =
      owner == Owner::kGivesWay ? block.giving_way : block.refcount - block.giving_way;
  CHECK(alike > 0) << "block " << id << " has no owner of this kind";
  if (owner == Owner::kGivesWay) --block.giving_way;
  if (--block.refcount > 0) {
    reclaimable_ += Reclaimable(block);
    return;
  }
  if (block.condemned) {
    block.state = State::kQuarantined;
    block.condemned = false;
    --condemned_used_;
    ++quarantined_;
  } else if (block.kept) {
    block.state = State::kCached;
    block.place = cached_.insert(cached_.end(), id);
  } else {
    block.state = State::kFree;
    free_.push_back(id);
  }
}

void BlockPool::ReleaseToQuarantine(BlockId id, Owner owner) {
  Block& block = Used(id);
  CHECK(!block.kept) << "block " << id << " is still in the prefix cache";
  if (!block.condemned) {
    reclaimable_ -= Reclaimable(block);
    block.condemned = true;
    ++condemned_used_;
  }
  Release(id, owner);
}

void BlockPool::Keep(BlockId id) {
  Block& block = Used(id);
  CHECK(!block.kept && !block.condemned) << "block " << id << " cannot be kept";
  block.kept = true;
}

void BlockPool::Forget(BlockId id) {
  CHECK_LT(id, blocks_.size());
  Block& block = blocks_[id];
  CHECK(block.kept) << "block " << id << " is not kept";
  block.kept = false;
  if (block.state != State::kCached) return;
  cached_.erase(block.place);
  block.state = State::kFree;
  free_.push_back(id);
}

void BlockPool::Touch(BlockId id) {
  CHECK_LT(id, blocks_.size());
  if (blocks_[id].state == State::kCached)
    cached_.splice(cached_.end(), cached_, blocks_[id].place);
}

std::optional<BlockId> BlockPool::OldestCached() const {
  if (cached_.empty()) return std::nullopt;
  return cached_.front();
}

bool BlockPool::is_condemned(BlockId id) const {
  CHECK_LT(id, blocks_.size());
  return blocks_[id].condemned;
}

bool BlockPool::is_cached(BlockId id) const {
  CHECK_LT(id, blocks_.size());
  return blocks_[id].state == State::kCached;
}

uint32_t BlockPool::refcount(BlockId id) const {
  CHECK_LT(id, blocks_.size());
  return blocks_[id].refcount;
}

bool BlockPool::has_firm_owner(BlockId id) const {
  CHECK_LT(id, blocks_.size());
  return blocks_[id].refcount > blocks_[id].giving_way;
}

absl::Status BlockPool::CheckInvariants(
    absl::Span<const std::vector<BlockId>* const> tables,
    absl::Span<const std::vector<BlockId>* const> giving_way) const {
  std::vector<uint32_t> owners(blocks_.size(), 0), owners_giving_way(blocks_.size(), 0);
  for (const std::vector<BlockId>* table : tables) {
    for (BlockId id : *table) {
      if (id >= blocks_.size())
        return absl::InternalError(absl::StrCat("a table names block ", id, " of ", total()));
      ++owners[id];
    }
  }
  for (const std::vector<BlockId>* table : giving_way) {
    for (BlockId id : *table) ++owners_giving_way[id];
  }
  std::vector<bool> in_free_list(blocks_.size(), false);
  for (BlockId id : free_) {
    if (in_free_list[id]) return absl::InternalError(absl::StrCat("block ", id, " is free twice"));
    in_free_list[id] = true;
  }
  std::vector<bool> in_cached_list(blocks_.size(), false);
  for (BlockId id : cached_) in_cached_list[id] = true;
  uint32_t free_count = 0, cached_count = 0, used_count = 0, quarantined_count = 0;
  uint32_t condemned_count = 0, reclaimable_count = 0;
  for (BlockId id = 0; id < blocks_.size(); ++id) {
    const Block& block = blocks_[id];
    if (block.refcount != owners[id]) {
      return absl::InternalError(absl::StrCat("block ", id, ": refcount ", block.refcount, " but ",
                                              owners[id], " owners"));
    }
    if (block.giving_way != owners_giving_way[id]) {
      return absl::InternalError(absl::StrCat("block ", id, ": ", block.giving_way, " and not ",
                                              owners_giving_way[id], " owners give way"));
    }
    if ((block.state == State::kUsed) != (block.refcount > 0)) {
      return absl::InternalError(
          absl::StrCat("block ", id, ": refcount ", block.refcount, " does not fit its state"));
    }
    if ((block.state == State::kFree) != in_free_list[id]) {
      return absl::InternalError(absl::StrCat("block ", id, ": state and free list disagree"));
    }
    if ((block.state == State::kCached) != in_cached_list[id] ||
        (block.state == State::kCached && !block.kept)) {
      return absl::InternalError(
          absl::StrCat("block ", id, ": state and list of cached blocks disagree"));
    }
    if (block.kept &&
        (block.condemned || block.state == State::kFree || block.state == State::kQuarantined)) {
      return absl::InternalError(absl::StrCat("block ", id, " is kept, but must not be"));
    }
    free_count += block.state == State::kFree;
    cached_count += block.state == State::kCached;
    used_count += block.state == State::kUsed;
    quarantined_count += block.state == State::kQuarantined;
    condemned_count += block.condemned;
    reclaimable_count += Reclaimable(block);
  }
  if (free_count != free() || cached_count != cached() || used_count != used() ||
      quarantined_count != quarantined_ || condemned_count != condemned_used_ ||
      reclaimable_count != reclaimable_) {
    return absl::InternalError(absl::StrCat("counts are wrong: free ", free(), " cached ", cached(),
                                            " used ", used(), " quarantined ", quarantined_,
                                            " reclaimable ", reclaimable_, " of ", total()));
  }
  return absl::OkStatus();
}

}  // namespace bitshard
