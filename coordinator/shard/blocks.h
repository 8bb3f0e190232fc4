// The parts of a graph that are cut together: what hangs on one Attention, on one GatedAct, and on
// the vocabulary.
//
// Found by following the data, not by names: the matrices whose rows feed an attention and the one
// that takes its output in segments must be cut at the same heads, and so on. Numbers are places in
// ModelGraph.nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "proto/graph.pb.h"

namespace bitshard {

struct AttentionBlock {
  int q_linear = 0;
  int k_linear = 0;
  int v_linear = 0;
  int attention = 0;
  int o_linear = 0;
};

struct MlpBlock {
  int gate_linear = 0;
  int up_linear = 0;
  int down_linear = 0;
};

struct Blocks {
  std::vector<AttentionBlock> attention;
  std::vector<MlpBlock> mlp;
  int embed = 0;
  int lm_head = 0;
  // The attention blocks between an MLP and the one before it: attention[mlp_attention_begin[i] ..
  // mlp_attention_end[i]).
  std::vector<size_t> mlp_attention_begin;
  std::vector<size_t> mlp_attention_end;
};

// INTERNAL when the graph has a shape that shard does not know how to cut.
absl::StatusOr<Blocks> FindBlocks(const internal::ModelGraph& graph);

}  // namespace bitshard
