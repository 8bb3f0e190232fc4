#include "worker/cache/kv_cache.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

TEST(KvCache, LayersAreZeroedAlignedAndApart) {
  const std::vector<KvLayout> layers = {
      {KvType::kF32, 3, 20}, {KvType::kBf16, 0, 64}, {KvType::kBf16, 1, 64}};
  auto cache = KvCache::Create(layers, 5);
  ASSERT_TRUE(cache.ok()) << cache.status();
  for (size_t i = 0; i < layers.size(); ++i) {
    uint8_t* layer = cache->layer(i);
    const int64_t bytes = layers[i].block_bytes() * 5;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(layer) % 64, 0u);
    EXPECT_TRUE(std::all_of(layer, layer + bytes, [](uint8_t b) { return b == 0; }))
        << "layer " << i;
    std::fill_n(layer, bytes, 0xff);
  }
  EXPECT_EQ(KvCache::BytesPerBlock(layers), 2u * 3 * 20 * 16 * 4 + 2 * 64 * 16 * 2);
}

TEST(KvCache, RankWithoutHeadsNeedsNoMemory) {
  auto cache = KvCache::Create({{KvType::kBf16, 0, 64}}, 1000);
  ASSERT_TRUE(cache.ok()) << cache.status();
  EXPECT_EQ(cache->bytes(), 0u);
  EXPECT_EQ(cache->blocks(), 1000u);
}

TEST(KvCache, MoreThanTheSystemGivesIsResourceExhausted) {
  const std::vector<KvLayout> huge(1000, {KvType::kF32, 1000, 4096});
  EXPECT_EQ(KvCache::Create(huge, std::numeric_limits<uint32_t>::max()).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(KvCache, MoveTakesTheMemoryAlong) {
  auto cache = KvCache::Create({{KvType::kF32, 1, 16}}, 2);
  ASSERT_TRUE(cache.ok());
  cache->layer(0)[0] = 7;
  KvCache moved = *std::move(cache);
  EXPECT_EQ(moved.layer(0)[0], 7);
}

}  // namespace
}  // namespace bitshard
