// Which bytes of which files a rank reads: the slices of its cut as ranges.
#pragma once

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/tensor_index.h"
#include "coordinator/shard/cut.h"
#include "proto/graph.pb.h"

namespace bitshard {

// `graph` is the whole one. A weight of which the rank has nothing gets an entry without ranges.
// Synthetic weights have slices alone.
absl::StatusOr<internal::LoadPlan> MakeLoadPlan(const internal::ModelGraph& graph,
                                                const TensorIndex& index, const RankCut& cut);

}  // namespace bitshard
