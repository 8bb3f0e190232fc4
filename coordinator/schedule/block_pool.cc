#include "coordinator/schedule/block_pool.h"

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"

namespace bitshard {

BlockPool::BlockPool(uint32_t total_blocks) : blocks_(total_blocks) {
  free_.reserve(total_blocks);
  for (uint32_t i = total_blocks; i > 0; --i)
    free_.push_back(i - 1);  // block 0 is given away first
}

absl::StatusOr<std::vector<BlockId>> BlockPool::Allocate(uint32_t count) {
  if (count > free_.size()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(count, " KV blocks wanted, ", free_.size(), " of ", total(), " are free"));
  }
  std::vector<BlockId> ids;
  ids.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    const BlockId id = free_.back();
    free_.pop_back();
    blocks_[id].state = State::kUsed;
    blocks_[id].refcount = 1;
    ids.push_back(id);
  }
  return ids;
}

void BlockPool::AddReference(BlockId id) {
  CHECK_LT(id, blocks_.size());
  CHECK(blocks_[id].state == State::kUsed) << "block " << id << " has no owner";
  ++blocks_[id].refcount;
}

void BlockPool::Release(BlockId id) {
  CHECK_LT(id, blocks_.size());
  Block& block = blocks_[id];
  CHECK(block.state == State::kUsed) << "block " << id << " is released twice";
  if (--block.refcount > 0) return;
  if (block.condemned) {
    block.state = State::kQuarantined;
    block.condemned = false;
    --condemned_used_;
    ++quarantined_;
  } else {
    block.state = State::kFree;
    free_.push_back(id);
  }
}

void BlockPool::ReleaseToQuarantine(BlockId id) {
  CHECK_LT(id, blocks_.size());
  CHECK(blocks_[id].state == State::kUsed) << "block " << id << " has no owner";
  if (!blocks_[id].condemned) {
    blocks_[id].condemned = true;
    ++condemned_used_;
  }
  Release(id);
}

uint32_t BlockPool::refcount(BlockId id) const {
  CHECK_LT(id, blocks_.size());
  return blocks_[id].refcount;
}

absl::Status BlockPool::CheckInvariants(
    absl::Span<const std::vector<BlockId>* const> tables) const {
  std::vector<uint32_t> owners(blocks_.size(), 0);
  for (const std::vector<BlockId>* table : tables) {
    for (BlockId id : *table) {
      if (id >= blocks_.size())
        return absl::InternalError(absl::StrCat("a table names block ", id, " of ", total()));
      ++owners[id];
    }
  }
  std::vector<bool> in_free_list(blocks_.size(), false);
  for (BlockId id : free_) {
    if (in_free_list[id]) return absl::InternalError(absl::StrCat("block ", id, " is free twice"));
    in_free_list[id] = true;
  }
  uint32_t free_count = 0, used_count = 0, quarantined_count = 0, condemned_count = 0;
  for (BlockId id = 0; id < blocks_.size(); ++id) {
    const Block& block = blocks_[id];
    if (block.refcount != owners[id]) {
      return absl::InternalError(absl::StrCat("block ", id, ": refcount ", block.refcount, " but ",
                                              owners[id], " owners"));
    }
    if ((block.state == State::kUsed) != (block.refcount > 0)) {
      return absl::InternalError(
          absl::StrCat("block ", id, ": refcount ", block.refcount, " does not fit its state"));
    }
    if ((block.state == State::kFree) != in_free_list[id]) {
      return absl::InternalError(absl::StrCat("block ", id, ": state and free list disagree"));
    }
    free_count += block.state == State::kFree;
    used_count += block.state == State::kUsed;
    quarantined_count += block.state == State::kQuarantined;
    condemned_count += block.condemned;
  }
  if (free_count != free() || used_count != used() || quarantined_count != quarantined_ ||
      condemned_count != condemned_used_) {
    return absl::InternalError(absl::StrCat("counts are wrong: free ", free(), " used ", used(),
                                            " quarantined ", quarantined_, " of ", total()));
  }
  return absl::OkStatus();
}

}  // namespace bitshard
