#include "coordinator/shard/blocks.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

using internal::ModelGraph;
using internal::Node;

// Who makes and who takes each value.
class Dataflow {
 public:
  static absl::StatusOr<Dataflow> Of(const ModelGraph& graph) {
    Dataflow flow(graph);
    flow.producer_.assign(graph.values_size(), -1);
    flow.consumers_.resize(graph.values_size());
    for (int n = 0; n < graph.nodes_size(); ++n) {
      for (uint32_t value : graph.nodes(n).inputs()) {
        if (value >= flow.producer_.size() || flow.producer_[value] < 0)
          return flow.Unknown(n, "takes a value that is not made before");
        flow.consumers_[value].push_back(n);
      }
      for (uint32_t value : graph.nodes(n).outputs()) {
        if (value >= flow.producer_.size() || flow.producer_[value] >= 0)
          return flow.Unknown(n, "makes a value that exists");
        flow.producer_[value] = n;
      }
    }
    return flow;
  }

  // The Linear whose output, perhaps rotated, is input `i` of node `n`, and goes nowhere else.
  absl::StatusOr<int> LinearBehind(int n, int i) const {
    int at = n;
    for (uint32_t value = graph_.nodes(n).inputs(i);; value = graph_.nodes(at).inputs(0)) {
      at = producer_[value];
      if (consumers_[value].size() != 1)
        return Unknown(at, "feeds more than one node inside a block");
      const Node& node = graph_.nodes(at);
      if (node.has_linear() && node.linear().segment_cols() == 0) return at;
      if (!node.has_rope()) return Unknown(at, "stands between a linear and its block");
    }
  }

  // The one row-parallel Linear that takes the output of node `n`.
  absl::StatusOr<int> SegmentLinearAfter(int n) const {
    const std::vector<int>& consumers = consumers_[graph_.nodes(n).outputs(0)];
    if (consumers.size() == 1) {
      const Node& node = graph_.nodes(consumers[0]);
      if (node.has_linear() && node.linear().segment_cols() > 0) return consumers[0];
    }
    return Unknown(n, "does not feed exactly one row-parallel linear");
  }

  absl::Status Unknown(int n, const std::string& what) const {
    return absl::InternalError(
        absl::StrCat("cannot shard the graph: node ", n, " '", graph_.nodes(n).name(), "' ", what));
  }

 private:
  explicit Dataflow(const ModelGraph& graph) : graph_(graph) {}

  const ModelGraph& graph_;
  std::vector<int> producer_;
  std::vector<std::vector<int>> consumers_;
};

absl::StatusOr<AttentionBlock> FindAttention(const ModelGraph& graph, const Dataflow& flow, int n) {
  if (graph.nodes(n).inputs_size() != 3) return flow.Unknown(n, "has not three inputs");
  AttentionBlock block{.attention = n};
  ASSIGN_OR_RETURN(block.q_linear, flow.LinearBehind(n, 0));
  ASSIGN_OR_RETURN(block.k_linear, flow.LinearBehind(n, 1));
  ASSIGN_OR_RETURN(block.v_linear, flow.LinearBehind(n, 2));
  ASSIGN_OR_RETURN(block.o_linear, flow.SegmentLinearAfter(n));
  // Q heads of a KV head lie together, equally many for each.
  const internal::Attention& attention = graph.nodes(n).attention();
  const uint32_t heads = attention.q_heads(), kv_heads = attention.kv_heads();
  bool regular = kv_heads > 0 && heads % kv_heads == 0 &&
                 attention.kv_head_of_q_size() == static_cast<int>(heads);
  for (uint32_t head = 0; regular && head < heads; ++head) {
    regular = attention.kv_head_of_q(static_cast<int>(head)) == head / (heads / kv_heads);
  }
  if (!regular) return flow.Unknown(n, "does not have its heads in even groups");
  if (graph.nodes(block.o_linear).linear().segment_cols() != attention.head_dim()) {
    return flow.Unknown(block.o_linear, "has segments that are not its heads");
  }
  return block;
}

absl::StatusOr<MlpBlock> FindMlp(const ModelGraph& graph, const Dataflow& flow, int n) {
  if (graph.nodes(n).inputs_size() != 2) return flow.Unknown(n, "has not two inputs");
  MlpBlock block;
  ASSIGN_OR_RETURN(block.gate_linear, flow.LinearBehind(n, 0));
  ASSIGN_OR_RETURN(block.up_linear, flow.LinearBehind(n, 1));
  ASSIGN_OR_RETURN(block.down_linear, flow.SegmentLinearAfter(n));
  return block;
}

}  // namespace

absl::StatusOr<Blocks> FindBlocks(const ModelGraph& graph) {
  ASSIGN_OR_RETURN(const Dataflow flow, Dataflow::Of(graph));
  Blocks blocks;
  std::optional<int> embed, lm_head;
  size_t block_linears = 0;
  for (int n = 0; n < graph.nodes_size(); ++n) {
    const Node& node = graph.nodes(n);
    switch (node.op_case()) {
      case Node::kAttention: {
        ASSIGN_OR_RETURN(const AttentionBlock block, FindAttention(graph, flow, n));
        blocks.attention.push_back(block);
        break;
      }
      case Node::kGatedAct: {
        ASSIGN_OR_RETURN(const MlpBlock block, FindMlp(graph, flow, n));
        blocks.mlp_attention_begin.push_back(blocks.mlp.empty() ? 0
                                                                : blocks.mlp_attention_end.back());
        blocks.mlp_attention_end.push_back(blocks.attention.size());
        blocks.mlp.push_back(block);
        break;
      }
      case Node::kEmbed:
        if (embed) return flow.Unknown(n, "is a second embedding");
        embed = n;
        break;
      case Node::kLmHead:
        if (lm_head) return flow.Unknown(n, "is a second head");
        lm_head = n;
        break;
      case Node::kLinear:
        ++block_linears;
        break;
      case Node::kRmsNorm:
      case Node::kRope:
      case Node::kResidualAdd:
      case Node::kSample:
        break;
      case Node::kAllReduce:
      case Node::OP_NOT_SET:
        return flow.Unknown(n, "must not be in an uncut graph");
    }
  }
  if (!embed || !lm_head)
    return absl::InternalError("cannot shard a graph without an embedding and a head");
  if (block_linears != 4 * blocks.attention.size() + 3 * blocks.mlp.size()) {
    return absl::InternalError("cannot shard a graph with linears outside of attention and MLP");
  }
  blocks.embed = *embed;
  blocks.lm_head = *lm_head;
  return blocks;
}

}  // namespace bitshard
