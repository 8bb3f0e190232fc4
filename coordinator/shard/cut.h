// Where every weight is cut for every rank: the decision, before graphs and byte ranges are made
// from it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "coordinator/shard/blocks.h"
#include "coordinator/shard/deal.h"
#include "proto/graph.pb.h"

namespace bitshard {

struct WeightSlice {
  Run rows;
  Run cols;
};

struct RankCut {
  std::vector<WeightSlice> weights;  // like ModelGraph.weights
  std::vector<Run> q_heads;          // of each Blocks::attention
  std::vector<Run> kv_heads;         // overlaps with other ranks' where KV heads are replicated
  Run vocab;                         // rows of the embedding and of the head
};

// One a rank. INVALID_ARGUMENT when a rank would own no unit at all. REQUIRES: shares are finite
// and positive, formats known.
absl::StatusOr<std::vector<RankCut>> CutGraph(const internal::ModelGraph& graph,
                                              const Blocks& blocks,
                                              const std::vector<double>& shares);

}  // namespace bitshard
