#include "worker/device/device_groups.h"

namespace bitshard {
namespace {

using internal::Node;

bool IsColumnParallel(const Node* node) {
  return node != nullptr && node->has_linear() && node->linear().segment_cols() == 0 &&
         node->inputs_size() == 1 && node->outputs_size() == 1;
}

// Adds `value` to something else, and nobody else reads it.
bool IsResidualOf(const GraphView& graph, const Node* node, uint32_t value) {
  return node != nullptr && node->has_residual_add() && node->inputs_size() == 2 &&
         node->outputs_size() == 1 && (node->inputs(0) == value || node->inputs(1) == value) &&
         graph.reads(value) == 1;
}

bool IsNormOf(const Node* node, uint32_t value) {
  return node != nullptr && node->has_rms_norm() && node->inputs_size() == 1 &&
         node->outputs_size() == 1 && node->inputs(0) == value;
}

int CountFrom(const GraphView& graph, int first) {
  const Node* const head = graph.node(first);
  int count = 1;
  if (head->has_all_reduce() && head->outputs_size() == 1) {
    uint32_t sum = head->outputs(0);
    if (IsResidualOf(graph, graph.node(first + 1), sum)) {
      sum = graph.node(first + 1)->outputs(0);
      ++count;
    }
    return IsNormOf(graph.node(first + count), sum) ? count + 1 : count;
  }
  if (IsRopeAttention(graph, first)) return 3;
  if (!IsColumnParallel(head)) return 1;
  while (count < kMaxLinearMembers) {
    const Node* const next = graph.node(first + count);
    if (!IsColumnParallel(next) || next->inputs(0) != head->inputs(0)) break;
    ++count;
  }
  return count;
}

}  // namespace

std::vector<NodeGroup> GroupForDevice(const internal::ModelGraph& graph) {
  const GraphView view(graph);
  std::vector<NodeGroup> groups;
  for (int first = 0; first < graph.nodes_size();) {
    groups.push_back({.first = first, .count = CountFrom(view, first)});
    first += groups.back().count;
  }
  return groups;
}

}  // namespace bitshard
