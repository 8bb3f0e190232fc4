// A whole graph and the ranks' shares in, one self-contained plan per rank out: its graph with the
// collectives in it, and the byte ranges that it must read.
//
// Pure: same input, same plans, on every machine. Units and segments are those of the design:
// attention is cut between KV heads (between Q heads when there are fewer KV heads than ranks, then
// KV heads are replicated), the MLP every 64 columns, the vocabulary every 64 rows. Sum segments
// come from the graph and never depend on the cut.
#pragma once

#include <vector>

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/tensor_index.h"
#include "proto/graph.pb.h"

namespace bitshard {

// `shares`: one positive weight a rank, in any unit; only their ratios count. World 1 has the same
// collectives, so that its arithmetic is the same. A rank may own no unit of a matrix;
// INVALID_ARGUMENT when it would own nothing at all.
absl::StatusOr<std::vector<internal::RankPlan>> ShardModel(const internal::ModelGraph& graph,
                                                           const TensorIndex& index,
                                                           const std::vector<double>& shares);

}  // namespace bitshard
