#include "coordinator/fleet/cache_size.h"

#include "kernels/tensor/kv_layout.h"

namespace bitshard {
namespace {

using internal::NumericsOptions;

KvType TypeOf(NumericsOptions::CacheType type) {
  switch (type) {
    case NumericsOptions::CACHE_TYPE_F32:
      return KvType::kF32;
    case NumericsOptions::CACHE_TYPE_F16:
      return KvType::kF16;
    case NumericsOptions::CACHE_TYPE_INT8:
      return KvType::kInt8;
    case NumericsOptions::CACHE_TYPE_FP8_E4M3:
      return KvType::kFp8E4m3;
    default:
      return KvType::kBf16;
  }
}

}  // namespace

uint64_t CacheBytesPerBlock(const internal::RankPlan& plan, const NumericsOptions& numerics) {
  uint64_t bytes = 0;
  for (const internal::Node& node : plan.graph().nodes()) {
    if (!node.has_attention()) continue;
    const KvLayout layout = {.type = TypeOf(numerics.kv_cache_type()),
                             .kv_heads = static_cast<int>(node.attention().kv_heads()),
                             .head_dim = static_cast<int>(node.attention().head_dim())};
    bytes += static_cast<uint64_t>(layout.block_bytes());
  }
  return bytes;
}

}  // namespace bitshard
