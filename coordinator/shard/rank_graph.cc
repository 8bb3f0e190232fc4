#include "coordinator/shard/rank_graph.h"

#include <cstdint>
#include <string>
#include <vector>

namespace bitshard {
namespace {

using internal::ModelGraph;
using internal::Node;
using internal::Value;

class RankGraphMaker {
 public:
  RankGraphMaker(const ModelGraph& graph, const Blocks& blocks, const RankCut& cut)
      : graph_(graph),
        cut_(cut),
        new_value_(graph.values_size()),
        attention_number_(graph.nodes_size()) {
    for (size_t i = 0; i < blocks.attention.size(); ++i)
      attention_number_[blocks.attention[i].attention] = i;
  }

  ModelGraph Make() {
    out_ = graph_;
    out_.clear_values();
    out_.clear_nodes();
    for (int w = 0; w < out_.weights_size(); ++w) {
      out_.mutable_weights(w)->set_rows(cut_.weights[w].rows.size());
      out_.mutable_weights(w)->set_cols(cut_.weights[w].cols.size());
    }
    for (int n = 0; n < graph_.nodes_size(); ++n) AddNode(n);
    return std::move(out_);
  }

 private:
  uint64_t WidthOf(uint32_t new_value) const {
    return out_.values(static_cast<int>(new_value)).width();
  }

  uint32_t AddValue(uint64_t width, Value::Type type) {
    Value* const value = out_.add_values();
    value->set_width(width);
    value->set_type(type);
    return static_cast<uint32_t>(out_.values_size() - 1);
  }

  // Sets the node's local sizes and returns the width of its output.
  uint64_t Localize(int n, Node& node) {
    switch (node.op_case()) {
      case Node::kEmbed:
        node.mutable_embed()->set_vocab_begin(cut_.vocab.begin);
        return out_.hidden_size();
      case Node::kLmHead:
        node.mutable_lm_head()->set_vocab_begin(cut_.vocab.begin);
        return cut_.vocab.size();
      case Node::kLinear:
        return cut_.weights[node.linear().weight()].rows.size();
      case Node::kRope:
        node.mutable_rope()->set_heads(
            static_cast<uint32_t>(WidthOf(node.inputs(0)) / node.rope().head_dim()));
        return WidthOf(node.inputs(0));
      case Node::kAttention:
        LocalizeAttention(attention_number_[n], *node.mutable_attention());
        return WidthOf(node.inputs(0));
      default:
        return WidthOf(node.inputs(0));
    }
  }

  void LocalizeAttention(size_t number, internal::Attention& attention) const {
    const Run& q = cut_.q_heads[number];
    const Run& kv = cut_.kv_heads[number];
    std::vector<uint32_t> kv_head_of_q;
    for (uint64_t head = q.begin; head < q.end; ++head) {
      kv_head_of_q.push_back(
          static_cast<uint32_t>(attention.kv_head_of_q(static_cast<int>(head)) - kv.begin));
    }
    attention.set_q_heads(static_cast<uint32_t>(q.size()));
    attention.set_kv_heads(static_cast<uint32_t>(kv.size()));
    attention.mutable_kv_head_of_q()->Assign(kv_head_of_q.begin(), kv_head_of_q.end());
  }

  void AddNode(int n) {
    Node node = graph_.nodes(n);
    for (uint32_t& input : *node.mutable_inputs()) input = new_value_[input];
    if (node.outputs_size() == 0) {  // sample
      *out_.add_nodes() = std::move(node);
      return;
    }
    const uint32_t old_output = node.outputs(0);
    const Value::Type type = graph_.values(static_cast<int>(old_output)).type();
    const uint64_t width = Localize(n, node);
    new_value_[old_output] = AddValue(width, type);
    node.set_outputs(0, new_value_[old_output]);
    Node& added = *out_.add_nodes();
    added = std::move(node);
    if (type != Value::F32) AddAllReduce(old_output, added);
  }

  void AddAllReduce(uint32_t old_output, Node& producer) {
    Node reduce;
    reduce.set_name(producer.name() + ".all_reduce");
    reduce.add_inputs(new_value_[old_output]);
    internal::AllReduce* const op = reduce.mutable_all_reduce();
    if (producer.has_linear() && producer.linear().has_bias()) {
      op->set_bias(producer.linear().bias());
      producer.mutable_linear()->clear_bias();
    }
    new_value_[old_output] = AddValue(WidthOf(new_value_[old_output]), Value::F32);
    reduce.add_outputs(new_value_[old_output]);
    *out_.add_nodes() = std::move(reduce);
  }

  const ModelGraph& graph_;
  const RankCut& cut_;
  ModelGraph out_;
  std::vector<uint32_t>
      new_value_;  // of each value of the whole graph; after its AllReduce where it has one
  std::vector<size_t> attention_number_;  // of the node in Blocks::attention
};

}  // namespace

ModelGraph MakeRankGraph(const ModelGraph& graph, const Blocks& blocks, const RankCut& cut) {
  return RankGraphMaker(graph, blocks, cut).Make();
}

}  // namespace bitshard
