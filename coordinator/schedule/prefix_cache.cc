#include "coordinator/schedule/prefix_cache.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"

namespace bitshard {

struct PrefixCache::Node {
  uint64_t id = 0;
  std::string seed;              // of a root
  Node* parent = nullptr;        // of a node that is no root
  BlockId block = 0;             // likewise
  std::vector<uint32_t> tokens;  // likewise; as many as a block has
  Node* first_child = nullptr;
  Node *next = nullptr, *previous = nullptr;  // children of the same parent
};

PrefixCache::Content PrefixCache::ContentOf(const Node* node) {
  return {node->parent->id, node->tokens};
}

PrefixCache::PrefixCache(BlockPool* pool, uint32_t block_tokens)
    : pool_(pool), block_tokens_(block_tokens), by_block_(pool->total()) {}

PrefixCache::~PrefixCache() = default;

PrefixCache::Hit PrefixCache::Find(const std::string& seed, absl::Span<const uint32_t> tokens,
                                   uint32_t most) const {
  Hit hit;
  auto root = roots_.find(seed);
  if (root == roots_.end()) return hit;
  const Node* node = root->second.get();
  while (hit.blocks.size() < most && tokens.size() >= block_tokens_) {
    auto child = index_.find(Content{node->id, tokens.first(block_tokens_)});
    if (child == index_.end()) break;
    node = *child;
    tokens.remove_prefix(block_tokens_);
    hit.blocks.push_back(node->block);
  }
  if (!hit.blocks.empty()) hit.place = Place{node->block, node->id};
  return hit;
}

std::optional<PrefixCache::Place> PrefixCache::Insert(const std::string& seed,
                                                      const std::optional<Place>& parent,
                                                      absl::Span<const uint32_t> tokens,
                                                      BlockId block) {
  CHECK_EQ(tokens.size(), block_tokens_);
  Node* above = parent.has_value() ? Find(*parent) : Root(seed);
  if (above == nullptr) return std::nullopt;
  auto same = index_.find(Content{above->id, tokens});
  if (same != index_.end()) return Place{(*same)->block, (*same)->id};
  CHECK(by_block_[block] == nullptr) << "block " << block << " holds other tokens";
  pool_->Keep(block);
  auto node = std::make_unique<Node>();
  node->id = ++last_id_;
  node->parent = above;
  node->block = block;
  node->tokens.assign(tokens.begin(), tokens.end());
  node->next = above->first_child;
  if (node->next != nullptr) node->next->previous = node.get();
  above->first_child = node.get();
  index_.insert(node.get());
  by_block_[block] = std::move(node);
  return Place{block, last_id_};
}

PrefixCache::Node* PrefixCache::Find(const Place& place) const {
  Node* node = by_block_[place.block].get();
  return node != nullptr && node->id == place.id ? node : nullptr;
}

PrefixCache::Node* PrefixCache::Root(const std::string& seed) {
  std::unique_ptr<Node>& root = roots_[seed];
  if (root == nullptr) {
    root = std::make_unique<Node>();
    root->id = ++last_id_;
    root->seed = seed;
  }
  return root.get();
}

void PrefixCache::Detach(Node* node) {
  Node* parent = node->parent;
  if (node->next != nullptr) node->next->previous = node->previous;
  (node->previous != nullptr ? node->previous->next : parent->first_child) = node->next;
  if (parent->parent == nullptr && parent->first_child == nullptr) {
    const std::string seed = std::move(parent->seed);
    roots_.erase(seed);
  }
}

void PrefixCache::Drop(BlockId block) {
  if (by_block_[block] == nullptr) return;
  ++drops_;
  // A chain may be long: no recursion.
  std::vector<Node*> doomed = {by_block_[block].get()};
  for (size_t i = 0; i < doomed.size(); ++i) {
    for (Node* child = doomed[i]->first_child; child != nullptr; child = child->next)
      doomed.push_back(child);
  }
  for (Node* node : doomed) index_.erase(node);  // its key is the parent's id
  Detach(doomed.front());
  for (Node* node : doomed) {
    const BlockId gone = node->block;
    pool_->Forget(gone);
    by_block_[gone].reset();
  }
}

void PrefixCache::Touch(const Place& place) {
  for (Node* node = Find(place); node != nullptr && node->parent != nullptr; node = node->parent)
    pool_->Touch(node->block);
}

absl::StatusOr<std::vector<BlockId>> PrefixCache::Allocate(uint32_t count, BlockPool::Owner owner) {
  if (count <= pool_->available()) {
    const uint32_t before = pool_->cached();
    while (pool_->free() < count) Drop(*pool_->OldestCached());
    evicted_ += before - pool_->cached();
  }
  return pool_->Allocate(count, owner);
}

absl::Status PrefixCache::CheckInvariants() const {
  const auto broken = [](const Node& node, absl::string_view what) {
    return absl::InternalError(
        absl::StrCat("prefix cache: the node of block ", node.block, " ", what));
  };
  absl::flat_hash_map<BlockId, size_t> order;  // of eviction
  for (BlockId id : pool_->cached_blocks()) order.emplace(id, order.size());
  size_t nodes = 0, children = 0;
  const auto count_children = [&children](const Node& node) {
    for (const Node* child = node.first_child; child != nullptr; child = child->next) {
      if (child->parent != &node || (child->next != nullptr && child->next->previous != child))
        return false;
      ++children;
    }
    return true;
  };
  for (BlockId id = 0; id < by_block_.size(); ++id) {
    if (by_block_[id] == nullptr) {
      if (pool_->is_cached(id))
        return absl::InternalError(absl::StrCat("block ", id, " is cached and has no node"));
      continue;
    }
    const Node& node = *by_block_[id];
    ++nodes;
    if (node.block != id || node.tokens.size() != block_tokens_)
      return broken(node, "is filed wrongly");
    if (pool_->refcount(id) == 0 && !pool_->is_cached(id))
      return broken(node, "holds a block that is neither used nor cached");
    if (pool_->is_condemned(id)) return broken(node, "holds a condemned block");
    auto found = index_.find(&node);
    if (found == index_.end() || *found != &node) return broken(node, "is not found by its tokens");
    const bool below_root = node.parent->parent == nullptr;
    if (below_root) {
      auto root = roots_.find(node.parent->seed);
      if (root == roots_.end() || root->second.get() != node.parent)
        return broken(node, "has lost its root");
    } else if (by_block_[node.parent->block].get() != node.parent) {
      return broken(node, "has lost its parent");
    } else if (pool_->is_cached(id) && pool_->is_cached(node.parent->block) &&
               order.at(node.parent->block) < order.at(id)) {
      return broken(node, "would be evicted after its parent");
    }
    if (!count_children(node)) return broken(node, "has children that are not its own");
  }
  for (const auto& [seed, root] : roots_) {
    if (root->first_child == nullptr || root->seed != seed || !count_children(*root))
      return absl::InternalError("prefix cache: a root has no right to be there");
  }
  if (nodes != index_.size() || nodes != children) {
    return absl::InternalError(absl::StrCat("prefix cache: ", nodes, " nodes, ", index_.size(),
                                            " in the index, ", children, " children"));
  }
  return absl::OkStatus();
}

}  // namespace bitshard
