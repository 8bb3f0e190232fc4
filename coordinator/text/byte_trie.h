// A set of byte strings as a trie: added tokens and stop strings are looked up in it while walking
// over text.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/container/flat_hash_map.h"

namespace bitshard {

class ByteTrie {
 public:
  using NodeId = int32_t;
  static constexpr NodeId kRoot = 0;

  // The node that stands for `bytes`; made, with those of its prefixes, when new. Ids are dense,
  // parents come first.
  NodeId Insert(std::string_view bytes) {
    NodeId node = kRoot;
    for (char c : bytes) node = InsertChild(node, static_cast<unsigned char>(c));
    return node;
  }

  NodeId InsertChild(NodeId node, unsigned char byte) {
    auto [edge, is_new] = edges_.try_emplace(Key(node, byte), nodes_);
    if (is_new) ++nodes_;
    return edge->second;
  }

  std::optional<NodeId> Child(NodeId node, unsigned char byte) const {
    auto edge = edges_.find(Key(node, byte));
    if (edge == edges_.end()) return std::nullopt;
    return edge->second;
  }

  int32_t num_nodes() const { return nodes_; }

 private:
  static uint64_t Key(NodeId node, unsigned char byte) {
    return static_cast<uint64_t>(node) << 8 | byte;
  }

  int32_t nodes_ = 1;  // the root
  absl::flat_hash_map<uint64_t, NodeId> edges_;
};

}  // namespace bitshard
