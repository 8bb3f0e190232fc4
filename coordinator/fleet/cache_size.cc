#include "coordinator/fleet/cache_size.h"

#include <optional>

#include "kernels/tensor/kv_type_by_name.h"
#include "proto/cache_type.h"

namespace bitshard {

uint64_t CacheBytesPerBlock(const internal::RankPlan& plan,
                            const internal::NumericsOptions& numerics) {
  const std::optional<KvType> type = KvTypeByName(CacheTypeName(numerics.kv_cache_type()));
  if (!type) return 0;
  uint64_t bytes = 0;
  for (const internal::Node& node : plan.graph().nodes()) {
    if (!node.has_attention()) continue;
    const KvLayout layout = {.type = *type,
                             .kv_heads = static_cast<int>(node.attention().kv_heads()),
                             .head_dim = static_cast<int>(node.attention().head_dim())};
    bytes += static_cast<uint64_t>(layout.block_bytes());
  }
  return bytes;
}

}  // namespace bitshard
