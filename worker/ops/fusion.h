// Which neighbouring nodes of a graph one op computes together, so that values are used while they
// are in the cache and threads wait for each other less often. The graph stays as it is, and so do
// the bits: a fused op makes the same roundings in the same order.
//
// One file a fusion; it registers itself before main.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "proto/graph.pb.h"

namespace bitshard {

class BindContext;  // worker/ops/bind_context.h
class Op;           // worker/ops/op.h

// Nodes [first, first + count).
struct NodeGroup {
  int first = 0;
  int count = 1;
};

// A graph that nobody has checked yet, as fusions look at it: what does not exist is none.
class GraphView {
 public:
  explicit GraphView(const internal::ModelGraph& graph);

  // Null behind the end.
  const internal::Node* node(int index) const;
  // How often nodes read the value.
  int reads(uint32_t value) const {
    return value < reads_.size() ? reads_[static_cast<size_t>(value)] : 0;
  }

 private:
  const internal::ModelGraph& graph_;
  std::vector<int> reads_;  // by value
};

// Whether the nodes from `first` on are the ropes of q and k, in either order, which rotate alike,
// and the attention, which alone reads them.
bool IsRopeAttention(const GraphView& graph, int first);

// How many nodes from `first` on it would take as one op; below 2: none. The nodes may be malformed
// in every way: what it does not understand it does not take.
using MatchFusionFn = int (*)(const GraphView& graph, int first);
// As BindOpFn, for the nodes it took. Values of one group are alive all at once: no output lies in
// the memory of an input, but for the first input of ops that may work in place.
using BindFusionFn = absl::StatusOr<std::unique_ptr<Op>> (*)(
    absl::Span<const internal::Node* const> nodes, BindContext& bind);

// Before main: `const RegisterFusion kRegistered("linear_group", &Match, &Bind);`.
struct RegisterFusion {
  RegisterFusion(const char* name, MatchFusionFn match, BindFusionFn bind);
};

// The groups of a graph in its order, all nodes once. `fuse` = false: every node alone.
std::vector<NodeGroup> GroupNodes(const internal::ModelGraph& graph, bool fuse);

// Binds a group that GroupNodes has made: a fusion, or a node alone (BindOp).
absl::StatusOr<std::unique_ptr<Op>> BindGroup(const internal::ModelGraph& graph,
                                              const NodeGroup& group, BindContext& bind);

// For a node of a fused op that cannot be bound: says which.
absl::Status NodeError(const internal::Node& node, const absl::Status& status);

}  // namespace bitshard
