#include "coordinator/text/stop_matcher.h"

#include <utility>

namespace bitshard {

StopMatcher::StopMatcher(const std::vector<std::string>& stops, bool include_stop)
    : include_stop_(include_stop), nodes_(1) {
  // Nodes in order of their parents' creation; breadth first is needed below, hence by length.
  struct Edge {
    ByteTrie::NodeId parent, child;
    unsigned char byte;
  };
  std::vector<std::vector<Edge>> by_length;
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string& stop = stops[i];
    if (stop.empty()) continue;
    if (by_length.size() < stop.size()) by_length.resize(stop.size());
    ByteTrie::NodeId node = ByteTrie::kRoot;
    for (size_t length = 1; length <= stop.size(); ++length) {
      const unsigned char byte = static_cast<unsigned char>(stop[length - 1]);
      const int32_t known = trie_.num_nodes();
      const ByteTrie::NodeId child = trie_.InsertChild(node, byte);
      if (child == known) {
        nodes_.emplace_back().bytes = static_cast<int32_t>(length);
        by_length[length - 1].push_back({node, child, byte});
      }
      node = child;
    }
    if (!nodes_[node].stop.has_value()) {  // of equal stop strings the first
      nodes_[node].stop = static_cast<int>(i);
      nodes_[node].stop_bytes = static_cast<int32_t>(stop.size());
    }
  }
  for (const std::vector<Edge>& edges : by_length) {
    for (const Edge& edge : edges) {
      Node& node = nodes_[edge.child];
      if (edge.parent != ByteTrie::kRoot) node.fail = Step(nodes_[edge.parent].fail, edge.byte);
      if (!node.stop.has_value()) {
        node.stop = nodes_[node.fail].stop;
        node.stop_bytes = nodes_[node.fail].stop_bytes;
      }
    }
  }
}

ByteTrie::NodeId StopMatcher::Step(ByteTrie::NodeId node, unsigned char byte) const {
  while (true) {
    if (const std::optional<ByteTrie::NodeId> child = trie_.Child(node, byte)) return *child;
    if (node == ByteTrie::kRoot) return node;
    node = nodes_[node].fail;
  }
}

StopMatcher::Result StopMatcher::Push(std::string_view text) {
  if (matched_.has_value()) return {.emit = "", .matched = matched_};
  const size_t already = held_.size();
  std::string buffer = std::exchange(held_, std::string());
  buffer += text;
  for (size_t at = already; at < buffer.size(); ++at) {
    node_ = Step(node_, static_cast<unsigned char>(buffer[at]));
    const Node& node = nodes_[node_];
    if (!node.stop.has_value()) continue;
    matched_ = node.stop;
    buffer.resize(at + 1 - (include_stop_ ? 0 : node.stop_bytes));
    return {.emit = std::move(buffer), .matched = matched_};
  }
  const size_t held = nodes_[node_].bytes;
  held_ = buffer.substr(buffer.size() - held);
  buffer.resize(buffer.size() - held);
  return {.emit = std::move(buffer), .matched = std::nullopt};
}

std::string StopMatcher::Finish() {
  node_ = ByteTrie::kRoot;
  return std::exchange(held_, std::string());
}

}  // namespace bitshard
