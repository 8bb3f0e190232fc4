// Bytes of KV cache that one block takes on a rank: what --kv-cache-bytes is divided by.
#pragma once

#include <cstdint>

#include "proto/graph.pb.h"
#include "proto/worker.pb.h"

namespace bitshard {

// 0 for a rank without attention heads, and for a cache type that workers refuse.
uint64_t CacheBytesPerBlock(const internal::RankPlan& plan,
                            const internal::NumericsOptions& numerics);

}  // namespace bitshard
