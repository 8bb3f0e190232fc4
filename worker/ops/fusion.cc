#include "worker/ops/fusion.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "kernels/base/check.h"
#include "worker/ops/op.h"

namespace bitshard {
namespace {

using internal::ModelGraph;
using internal::Node;

struct Fusion {
  std::string_view name;
  MatchFusionFn match;
  BindFusionFn bind;
};

std::vector<Fusion>& Registry() {
  static auto* registry = new std::vector<Fusion>;
  return *registry;
}

// Whose output one node reads.
bool IsRope(const GraphView& graph, const Node* node) {
  return node != nullptr && node->has_rope() && node->inputs_size() == 1 &&
         node->outputs_size() == 1 && graph.reads(node->outputs(0)) == 1;
}

// Equal but for the number of heads.
bool SameRotation(internal::Rope a, internal::Rope b) {
  a.set_heads(0);
  b.set_heads(0);
  return a.SerializeAsString() == b.SerializeAsString();
}

// The fusion that takes most nodes; names break ties, so that the order of registration does not
// matter.
const Fusion* BestFusion(const GraphView& view, int first, int* count) {
  const Fusion* best = nullptr;
  *count = 1;
  for (const Fusion& fusion : Registry()) {
    const int taken = fusion.match(view, first);
    if (taken < 2 || taken < *count) continue;
    if (best != nullptr && taken == *count && best->name < fusion.name) continue;
    best = &fusion;
    *count = taken;
  }
  return best;
}

}  // namespace

GraphView::GraphView(const ModelGraph& graph)
    : graph_(graph), reads_(static_cast<size_t>(graph.values_size()), 0) {
  for (const Node& node : graph.nodes()) {
    for (const uint32_t value : node.inputs()) {
      if (value < reads_.size()) ++reads_[value];
    }
  }
}

const Node* GraphView::node(int index) const {
  return index >= 0 && index < graph_.nodes_size() ? &graph_.nodes(index) : nullptr;
}

bool IsRopeAttention(const GraphView& graph, int first) {
  const Node* const a = graph.node(first);
  const Node* const b = graph.node(first + 1);
  const Node* const attention = graph.node(first + 2);
  if (!IsRope(graph, a) || !IsRope(graph, b) || attention == nullptr ||
      !attention->has_attention() || attention->inputs_size() != 3 ||
      !SameRotation(a->rope(), b->rope()) ||
      a->rope().head_dim() != attention->attention().head_dim()) {
    return false;
  }
  const uint32_t q = attention->inputs(0), k = attention->inputs(1);
  return (a->outputs(0) == q && b->outputs(0) == k) || (a->outputs(0) == k && b->outputs(0) == q);
}

RegisterFusion::RegisterFusion(const char* name, MatchFusionFn match, BindFusionFn bind) {
  Registry().push_back({name, match, bind});
}

std::vector<NodeGroup> GroupNodes(const ModelGraph& graph, bool fuse) {
  const GraphView view(graph);
  std::vector<NodeGroup> groups;
  for (int first = 0; first < graph.nodes_size();) {
    NodeGroup group{.first = first, .count = 1};
    if (fuse) BestFusion(view, first, &group.count);
    groups.push_back(group);
    first += group.count;
  }
  return groups;
}

absl::StatusOr<std::unique_ptr<Op>> BindGroup(const ModelGraph& graph, const NodeGroup& group,
                                              BindContext& bind) {
  if (group.count == 1) return BindOp(graph.nodes(group.first), bind);
  int count = 0;
  const Fusion* fusion = BestFusion(GraphView(graph), group.first, &count);
  CHECK(fusion != nullptr && count == group.count);
  std::vector<const Node*> nodes;
  for (int i = 0; i < count; ++i) nodes.push_back(&graph.nodes(group.first + i));
  return fusion->bind(nodes, bind);
}

absl::Status NodeError(const Node& node, const absl::Status& status) {
  if (status.ok()) return status;
  const auto* field = Node::descriptor()->FindFieldByNumber(static_cast<int>(node.op_case()));
  absl::Status told(status.code(),
                    absl::StrCat("graph node ", node.name(), " (",
                                 field == nullptr ? "?" : field->name(), "): ", status.message()));
  // With what it carries: that a device is lost must not get lost on the way.
  status.ForEachPayload(
      [&told](absl::string_view url, const absl::Cord& payload) { told.SetPayload(url, payload); });
  return told;
}

}  // namespace bitshard
