// Which KV blocks hold which tokens, so that a sequence that begins as another one did need not
// compute its first blocks again.
//
// A tree: a node is one full block of tokens after the tokens of its parent; a root stands for a
// seed, all that KV must have in common besides its tokens (the model's fingerprint, the caller's
// salt). Tokens are compared one by one on a lookup; nothing rests on a hash being unique.
//
// Owned by Scheduler, over its BlockPool. Only what the caller says is in a node's block; the
// caller names a block only after the plan that fills it was sent, with committed tokens only.
// Invariants: a node's block is used or cached, kept and of no other node; each node's parent is
// there; of an unowned parent and an unowned child the child is evicted first. When a node goes,
// those below it go too: whoever holds their blocks keeps them, but nobody else finds them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "coordinator/schedule/block_pool.h"

namespace bitshard {

class PrefixCache {
 public:
  // A node that may have gone since: ids are never given out again.
  struct Place {
    BlockId block = 0;
    uint64_t id = 0;
  };
  struct Hit {
    std::vector<BlockId> blocks;  // in order
    std::optional<Place> place;   // of the last one
  };

  // The pool outlives the cache; all its blocks come from here.
  PrefixCache(BlockPool* pool, uint32_t block_tokens);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The longest known chain of full blocks at the beginning of `tokens`, of `most` blocks at most.
  // Changes nothing: blocks without an owner may be evicted until AddReference.
  Hit Find(const std::string& seed, absl::Span<const uint32_t> tokens, uint32_t most) const;

  // Says that `block`, which the caller owns, holds `tokens` (one block of them) after those of
  // `parent` (none: from the beginning). The new node, or the one that has the same tokens already
  // in another block; nullopt when the parent has gone. REQUIRES: not condemned.
  std::optional<Place> Insert(const std::string& seed, const std::optional<Place>& parent,
                              absl::Span<const uint32_t> tokens, BlockId block);

  bool Has(const Place& place) const { return Find(place) != nullptr; }
  bool HasBlock(BlockId block) const { return by_block_[block] != nullptr; }

  // Takes the node of the block out, and all below it; nothing happens when it has none.
  void Drop(BlockId block);

  // The chain up to `place` has been in use until now: its unowned blocks count as just released,
  // the first one last. Nothing happens when the node has gone.
  void Touch(const Place& place);

  // As BlockPool::Allocate, evicting cached blocks when too few are free.
  absl::StatusOr<std::vector<BlockId>> Allocate(uint32_t count,
                                                BlockPool::Owner owner = BlockPool::Owner::kFirm);

  size_t size() const { return index_.size(); }
  // Grows when nodes go: as long as it is the same every place is there.
  uint64_t drops() const { return drops_; }
  // Cached blocks that Allocate threw out.
  uint64_t evicted() const { return evicted_; }

  // INTERNAL with the first broken invariant; for tests.
  absl::Status CheckInvariants() const;

 private:
  struct Node;
  struct Content {  // what makes a node
    uint64_t parent;
    absl::Span<const uint32_t> tokens;
  };
  static Content ContentOf(const Node* node);
  static Content ContentOf(const Content& content) { return content; }
  struct HashContent {
    using is_transparent = void;
    template <typename T>
    size_t operator()(const T& value) const {
      const Content content = ContentOf(value);
      return absl::HashOf(content.parent, content.tokens);
    }
  };
  struct SameContent {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      const Content x = ContentOf(a), y = ContentOf(b);
      return x.parent == y.parent && x.tokens == y.tokens;
    }
  };

  Node* Find(const Place& place) const;
  Node* Root(const std::string& seed);
  void Detach(Node* node);

  BlockPool* const pool_;
  const uint32_t block_tokens_;
  uint64_t last_id_ = 0, drops_ = 0, evicted_ = 0;
  std::vector<std::unique_ptr<Node>> by_block_;
  // Those with nodes below them.
  absl::flat_hash_map<std::string, std::unique_ptr<Node>> roots_;
  absl::flat_hash_set<Node*, HashContent, SameContent> index_;
};

}  // namespace bitshard
