// One rank's graph: the whole graph with local sizes, and an AllReduce wherever a value is the sum
// over the ranks.
#pragma once

#include "coordinator/shard/blocks.h"
#include "coordinator/shard/cut.h"
#include "proto/graph.pb.h"

namespace bitshard {

internal::ModelGraph MakeRankGraph(const internal::ModelGraph& graph, const Blocks& blocks,
                                   const RankCut& cut);

}  // namespace bitshard
