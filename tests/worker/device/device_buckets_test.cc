#include "worker/device/device_buckets.h"

#include <gtest/gtest.h>

namespace bitshard {
namespace {

TEST(DeviceBuckets, GrowToOneThatHoldsATokenOfEveryRow) {
  EXPECT_EQ(DeviceBuckets(8192, 6, 1000).tokens(), (std::vector<int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(DeviceBuckets(8192, 1, 1000).tokens(), (std::vector<int64_t>{1}));
  EXPECT_EQ(DeviceBuckets(8192, 70, 1000).tokens(),
            (std::vector<int64_t>{1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 96}));
  EXPECT_EQ(DeviceBuckets(8192, 1000, 1000).tokens().back(), DeviceBuckets::kMostTokens);
}

TEST(DeviceBuckets, NeverHoldMoreThanAStep) {
  EXPECT_EQ(DeviceBuckets(6, 100, 1000).tokens(), (std::vector<int64_t>{1, 2, 4, 6}));
}

TEST(DeviceBuckets, OfContextsHoldTheWholeOne) {
  EXPECT_EQ(DeviceBuckets(8, 8, 200).contexts(), (std::vector<int64_t>{256}));
  EXPECT_EQ(DeviceBuckets(8, 8, 1024).contexts(), (std::vector<int64_t>{1024}));
  EXPECT_EQ(DeviceBuckets(8, 8, 10000).contexts(), (std::vector<int64_t>{1024, 4096, 10240}));
}

TEST(DeviceBuckets, TheSmallestThatHoldsItIsTaken) {
  const DeviceBuckets buckets(8192, 16, 10000);
  EXPECT_EQ(buckets.TokensFor(1), 0u);
  EXPECT_EQ(buckets.TokensFor(3), 2u);
  EXPECT_EQ(buckets.TokensFor(16), 4u);
  EXPECT_EQ(buckets.TokensFor(17), std::nullopt);
  EXPECT_EQ(buckets.ContextFor(1), 0u);
  EXPECT_EQ(buckets.ContextFor(1024), 0u);
  EXPECT_EQ(buckets.ContextFor(1025), 1u);
  EXPECT_EQ(buckets.ContextFor(10000), 2u);
}

}  // namespace
}  // namespace bitshard
