#include "worker/cache/kv_cache.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "worker/memory_report.h"

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

TEST(KvCache, EightBitTypesHaveScalesBehindTheirPlanes) {
  for (const KvType type : {KvType::kInt8, KvType::kFp8E4m3}) {
    const KvLayout layout = {type, 3, 64};
    EXPECT_EQ(layout.plane_bytes(), 16 * 64);
    EXPECT_EQ(layout.k_offset(0), 0);
    EXPECT_EQ(layout.v_offset(0), 16 * 64 + 16 * 4);
    EXPECT_EQ(layout.k_offset(1), 2 * (16 * 64 + 16 * 4));
    EXPECT_EQ(KvCache::BytesPerBlock({layout, layout}), 2u * 3 * 2 * 16 * (64 + 4));
  }
}

TEST(KvCache, PlanesAndScalesBeginOnCacheLines) {
  for (const KvType type : kAllKvTypes) {
    for (int head_dim : {4, 20, 64, 80, 128}) {
      const KvLayout layout = {type, 5, head_dim};
      for (int head = 0; head < 5; ++head) {
        EXPECT_EQ(layout.k_offset(head) % 64, 0) << KvTypeName(type) << " " << head_dim;
        EXPECT_EQ(layout.v_offset(head) % 64, 0) << KvTypeName(type) << " " << head_dim;
      }
      EXPECT_EQ(layout.plane_bytes() % 64, 0);
      EXPECT_EQ(layout.block_bytes() % 64, 0);
    }
  }
}

uint64_t ResidentBytes() { return MeasureMemory().kv_cache_resident_bytes(); }

TEST(KvCache, TouchTakesTheHostsMemoryForTheBlocksAskedForAndKeepsWhatTheyHold) {
  // 8 KiB a block and layer: two pages.
  const std::vector<KvLayout> layers = {
      {KvType::kF32, 1, 64}, {KvType::kF32, 0, 64}, {KvType::kF32, 1, 64}};
  ASSERT_EQ(layers[0].block_bytes(), 8192);
  auto cache = KvCache::Create(layers, 100);
  ASSERT_TRUE(cache.ok()) << cache.status();
  cache->layer(2)[5] = 7;
  ASSERT_EQ(ResidentBytes(), 4096u);
  int pieces = 1;
  while (cache->Touch(0, 70)) ++pieces;
  EXPECT_EQ(pieces, 3 * 3);  // 32 blocks of a layer, or what is left
  EXPECT_EQ(ResidentBytes(), 2u * 70 * 8192);
  EXPECT_FALSE(cache->Touch(0, 70));
  // What steps have used meanwhile is passed over.
  while (cache->Touch(90, 95)) {
  }
  EXPECT_EQ(ResidentBytes(), 2u * 75 * 8192);
  while (cache->Touch(95, 1000)) {
  }
  EXPECT_EQ(ResidentBytes(), 2u * 80 * 8192);
  EXPECT_EQ(cache->layer(2)[5], 7);
}

TEST(KvCache, RankWithoutHeadsNeedsNoMemory) {
  auto cache = KvCache::Create({{KvType::kBf16, 0, 64}}, 1000);
  ASSERT_TRUE(cache.ok()) << cache.status();
  EXPECT_EQ(cache->bytes(), 0u);
  EXPECT_EQ(cache->blocks(), 1000u);
  EXPECT_FALSE(cache->Touch(0, 1000));
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
