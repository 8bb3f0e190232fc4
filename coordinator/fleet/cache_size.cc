#include "coordinator/fleet/cache_size.h"

namespace bitshard {

uint64_t CacheBytesPerBlock(const internal::RankPlan& plan,
                            const internal::NumericsOptions& numerics) {
  const uint64_t value_bytes =
      numerics.kv_cache_type() == internal::NumericsOptions::CACHE_TYPE_F32 ? 4 : 2;
  uint64_t values_per_token = 0;
  for (const internal::Node& node : plan.graph().nodes()) {
    if (!node.has_attention()) continue;
    // Keys and values.
    values_per_token += 2 * uint64_t{node.attention().kv_heads()} * node.attention().head_dim();
  }
  return values_per_token * value_bytes * numerics.block_tokens();
}

}  // namespace bitshard
