// What the coordinator counts a block of the KV cache for is what a worker allocates for it
// (kernels/tensor/kv_layout.h).
#include "coordinator/fleet/cache_size.h"

#include <gtest/gtest.h>

namespace bitshard {
namespace {

using internal::NumericsOptions;

uint64_t Bytes(NumericsOptions::CacheType type) {
  internal::RankPlan plan;
  plan.mutable_graph()->add_nodes()->mutable_rms_norm();
  for (uint32_t kv_heads : {3u, 2u, 0u}) {
    internal::Attention& attention = *plan.mutable_graph()->add_nodes()->mutable_attention();
    attention.set_kv_heads(kv_heads);
    attention.set_head_dim(64);
  }
  NumericsOptions numerics;
  numerics.set_kv_cache_type(type);
  numerics.set_block_tokens(16);
  return CacheBytesPerBlock(plan, numerics);
}

TEST(CacheBytesPerBlock, FollowsTheTypeAndItsScales) {
  // 5 heads, K and V, 16 positions.
  EXPECT_EQ(Bytes(NumericsOptions::CACHE_TYPE_F32), 5u * 2 * 16 * 64 * 4);
  EXPECT_EQ(Bytes(NumericsOptions::CACHE_TYPE_F16), 5u * 2 * 16 * 64 * 2);
  EXPECT_EQ(Bytes(NumericsOptions::CACHE_TYPE_BF16), 5u * 2 * 16 * 64 * 2);
  EXPECT_EQ(Bytes(NumericsOptions::CACHE_TYPE_INT8), 5u * 2 * 16 * (64 + 4));
  EXPECT_EQ(Bytes(NumericsOptions::CACHE_TYPE_FP8_E4M3), 5u * 2 * 16 * (64 + 4));
}

TEST(CacheBytesPerBlock, OfATypeThatWorkersRefuseIsNone) {
  EXPECT_EQ(Bytes(NumericsOptions::CACHE_TYPE_UNSPECIFIED), 0u);
  EXPECT_EQ(Bytes(static_cast<NumericsOptions::CacheType>(99)), 0u);
}

TEST(CacheBytesPerBlock, RankWithoutHeadsNeedsNone) {
  EXPECT_EQ(CacheBytesPerBlock(internal::RankPlan(), NumericsOptions()), 0u);
}

}  // namespace
}  // namespace bitshard
