// Paged KV accounting: which cache block belongs to whom.
//
// Owned by the engine thread, hence no locks. Holds ids and counts only; the memory is in
// worker/cache, one block of the same id on every rank. Counts are in blocks. Invariants: free +
// cached + used + quarantined = total. A used block's refcount = the block tables that name it, at
// least 1; all others have 0. A cached block has no owner, but PrefixCache knows what it holds: it
// stays until somebody needs the block. A quarantined block has seen non-finite values; it comes
// back only with a new pool, that is with a new epoch. Owners are firm, or give way when a firm one
// wants what they have: blocks that only such ones own are counted, whoever lets go of them.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace bitshard {

using BlockId = uint32_t;

class BlockPool {
 public:
  enum class Owner : uint8_t { kFirm, kGivesWay };

  explicit BlockPool(uint32_t total_blocks);
  BlockPool(BlockPool&&) = default;
  BlockPool& operator=(BlockPool&&) = default;

  // Free ones, all or nothing, each with one reference: on RESOURCE_EXHAUSTED the pool is
  // unchanged. Those that were used before come first: their pages are mapped already. Cached ones
  // become free through Forget only, and so are kept until no other is left.
  absl::StatusOr<std::vector<BlockId>> Allocate(uint32_t count, Owner owner = Owner::kFirm);

  // One more owner. REQUIRES: `id` is used or cached.
  void AddReference(BlockId id, Owner owner = Owner::kFirm);

  // One owner less. The last one gives the block back: to quarantine if it is condemned, to the
  // cached ones if it is kept, else to the free ones. REQUIRES: `id` has such an owner.
  void Release(BlockId id, Owner owner = Owner::kFirm);

  // As Release, and the block will not be given away again: with its last owner it goes to
  // quarantine. REQUIRES: as Release, and `id` is not kept.
  void ReleaseToQuarantine(BlockId id, Owner owner = Owner::kFirm);

  // What the block holds is worth keeping. REQUIRES: `id` is used, not kept and not condemned.
  void Keep(BlockId id);
  // It is worth nothing any more; a cached block becomes free. REQUIRES: `id` is kept.
  void Forget(BlockId id);
  // A cached block counts as just released; nothing happens to others.
  void Touch(BlockId id);
  // The cached block that was released first.
  std::optional<BlockId> OldestCached() const;

  uint32_t total() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t cached() const { return static_cast<uint32_t>(cached_.size()); }
  uint32_t quarantined() const { return quarantined_; }
  uint32_t used() const { return total() - free() - cached() - quarantined_; }
  // Blocks that can be given to somebody now.
  uint32_t available() const { return free() + cached(); }
  // Blocks that would be available if all owners that give way had let go.
  uint32_t reclaimable() const { return reclaimable_; }
  // Blocks that can be given to somebody, now or later.
  uint32_t usable() const { return total() - quarantined_ - condemned_used_; }
  // Used blocks that go to quarantine with their last owner.
  uint32_t condemned() const { return condemned_used_; }
  bool is_condemned(BlockId id) const;
  bool is_cached(BlockId id) const;
  uint32_t refcount(BlockId id) const;
  bool has_firm_owner(BlockId id) const;
  // The cached ones, the one released first in front. For tests.
  const std::list<BlockId>& cached_blocks() const { return cached_; }

  // INTERNAL with the first broken invariant. `tables`: every owner's block table; `giving_way`:
  // of these, those of owners that give way.
  absl::Status CheckInvariants(absl::Span<const std::vector<BlockId>* const> tables,
                               absl::Span<const std::vector<BlockId>* const> giving_way = {}) const;

 private:
  enum class State : uint8_t { kFree, kCached, kUsed, kQuarantined };
  struct Block {
    uint32_t refcount = 0;
    uint32_t giving_way = 0;  // of these owners
    State state = State::kFree;
    bool kept = false;                   // used or cached
    bool condemned = false;              // used, and quarantined when its last owner lets go
    std::list<BlockId>::iterator place;  // of a cached one
  };
  Block& Used(BlockId id);
  static bool Reclaimable(const Block& block) {
    return block.state == State::kUsed && block.giving_way == block.refcount && !block.condemned;
  }

  std::vector<Block> blocks_;  // by id
  std::vector<BlockId> free_;  // a stack: the block freed last is given away first
  std::list<BlockId> cached_;  // in the order of their release
  uint32_t quarantined_ = 0, reclaimable_ = 0;
  uint32_t condemned_used_ = 0;  // blocks that are condemned but still have an owner
};

}  // namespace bitshard
