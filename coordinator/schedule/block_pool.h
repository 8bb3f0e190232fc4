// Paged KV accounting: which cache block belongs to whom.
//
// Owned by the engine thread, hence no locks. Holds ids and counts only; the memory is in
// worker/cache, one block of the same id on every rank. Counts are in blocks. Invariants: free +
// used + quarantined = total. A used block's refcount = the block tables (later also prefix-index
// entries) that name it, at least 1; free and quarantined blocks have 0.
// A quarantined block has seen non-finite values; it comes back only with a new pool, that is with
// a new epoch.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace bitshard {

using BlockId = uint32_t;

class BlockPool {
 public:
  explicit BlockPool(uint32_t total_blocks);

  // All or nothing, each block with one reference: on RESOURCE_EXHAUSTED the pool is unchanged.
  absl::StatusOr<std::vector<BlockId>> Allocate(uint32_t count);

  // One more owner of a used block. REQUIRES: `id` is used.
  void AddReference(BlockId id);

  // One owner less; the last one gives the block back (to quarantine if it is condemned). REQUIRES:
  // `id` is used.
  void Release(BlockId id);

  // As Release, and the block will not be given away again: with its last owner it goes to
  // quarantine.
  void ReleaseToQuarantine(BlockId id);

  uint32_t total() const { return static_cast<uint32_t>(blocks_.size()); }
  uint32_t free() const { return static_cast<uint32_t>(free_.size()); }
  uint32_t quarantined() const { return quarantined_; }
  uint32_t used() const { return total() - free() - quarantined_; }
  // Blocks that can still be given to somebody, now or later.
  uint32_t usable() const { return total() - quarantined_ - condemned_used_; }
  uint32_t refcount(BlockId id) const;

  // INTERNAL with the first broken invariant. `tables`: every owner's block table.
  absl::Status CheckInvariants(absl::Span<const std::vector<BlockId>* const> tables) const;

 private:
  enum class State : uint8_t { kFree, kUsed, kQuarantined };
  struct Block {
    uint32_t refcount = 0;
    State state = State::kFree;
    bool condemned = false;  // used, and quarantined when its last owner lets go
  };

  std::vector<Block> blocks_;  // by id
  std::vector<BlockId> free_;  // a stack: the block freed last is given away first
  uint32_t quarantined_ = 0;
  uint32_t condemned_used_ = 0;  // blocks that are condemned but still have an owner
};

}  // namespace bitshard
