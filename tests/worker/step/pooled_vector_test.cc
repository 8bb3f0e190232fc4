#include "worker/step/pooled_vector.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

constexpr uint32_t kWidth = 37;

std::vector<float> RandomRows(uint32_t rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(size_t{rows} * kWidth);
  for (float& value : values) {
    // Of many magnitudes: an order of summation other than the tokens' would show.
    const double mantissa = static_cast<double>(random() % 2001) / 1000 - 1;
    value = static_cast<float>(std::ldexp(mantissa, static_cast<int>(random() % 40) - 20));
  }
  return values;
}

std::vector<uint32_t> Bits(const PooledVector& pooled) {
  google::protobuf::RepeatedField<float> values;
  pooled.Write(&values);
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

TEST(PooledVector, MeanIsTheF64SumInOrderOverTheCountHoweverTheRowsCome) {
  constexpr uint32_t kRows = 50;
  const std::vector<float> rows = RandomRows(kRows, 1);
  std::vector<uint32_t> want;
  for (uint32_t i = 0; i < kWidth; ++i) {
    double sum = 0;
    for (uint32_t t = 0; t < kRows; ++t) sum += rows[t * kWidth + i];
    want.push_back(std::bit_cast<uint32_t>(static_cast<float>(sum / kRows)));
  }
  PooledVector pooled;
  pooled.Reserve(kWidth);
  for (const uint32_t chunk : {50u, 49u, 16u, 7u, 1u}) {
    pooled.Begin(internal::POOLING_MEAN);
    for (uint32_t t = 0; t < kRows; t += chunk)
      pooled.Add(rows.data() + t * kWidth, std::min(chunk, kRows - t));
    EXPECT_EQ(pooled.tokens(), kRows);
    EXPECT_EQ(Bits(pooled), want) << "chunks of " << chunk;
  }
  // Another order of the same rows is another sum, or the test above would prove nothing.
  pooled.Begin(internal::POOLING_MEAN);
  for (uint32_t t = kRows; t > 0; --t) pooled.Add(rows.data() + (t - 1) * kWidth, 1);
  std::vector<double> forward(kWidth), backward(kWidth);
  for (uint32_t t = 0; t < kRows; ++t) {
    for (uint32_t i = 0; i < kWidth; ++i) {
      forward[i] += rows[t * kWidth + i];
      backward[i] += rows[(kRows - 1 - t) * kWidth + i];
    }
  }
  EXPECT_NE(forward, backward);
}

TEST(PooledVector, LastIsTheLastRowAsItIs) {
  const std::vector<float> rows = RandomRows(5, 2);
  PooledVector pooled;
  pooled.Reserve(kWidth);
  pooled.Begin(internal::POOLING_LAST);
  pooled.Add(rows.data(), 3);
  pooled.Add(rows.data() + 3 * kWidth, 2);
  std::vector<uint32_t> want;
  for (uint32_t i = 0; i < kWidth; ++i)
    want.push_back(std::bit_cast<uint32_t>(rows[4 * kWidth + i]));
  EXPECT_EQ(Bits(pooled), want);
}

TEST(PooledVector, OneTokenIsItsOwnMean) {
  const std::vector<float> rows = RandomRows(1, 3);
  PooledVector pooled;
  pooled.Reserve(kWidth);
  pooled.Begin(internal::POOLING_MEAN);
  pooled.Add(rows.data(), 1);
  const std::vector<uint32_t> mean = Bits(pooled);
  pooled.Begin(internal::POOLING_LAST);
  pooled.Add(rows.data(), 1);
  EXPECT_EQ(Bits(pooled), mean);
}

TEST(PooledVector, NothingOfTheSequenceBeforeIsLeft) {
  const std::vector<float> first = RandomRows(4, 4), second = RandomRows(6, 5);
  PooledVector used, fresh;
  used.Reserve(kWidth);
  fresh.Reserve(kWidth);
  used.Begin(internal::POOLING_MEAN);
  used.Add(first.data(), 4);
  used.Begin(internal::POOLING_MEAN);
  EXPECT_EQ(used.tokens(), 0u);
  used.Add(second.data(), 6);
  fresh.Begin(internal::POOLING_MEAN);
  fresh.Add(second.data(), 6);
  EXPECT_EQ(Bits(used), Bits(fresh));
}

TEST(PooledVector, WhatIsNotFiniteStaysVisibleAndTheLargestFloatsAreFinite) {
  std::vector<float> rows = RandomRows(3, 6);
  PooledVector pooled;
  pooled.Reserve(kWidth);
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<float> with_bad = rows;
    with_bad[kWidth + 5] = bad;
    pooled.Begin(internal::POOLING_MEAN);
    pooled.Add(with_bad.data(), 1);
    EXPECT_TRUE(pooled.Finite());
    pooled.Add(with_bad.data() + kWidth, 1);
    EXPECT_FALSE(pooled.Finite());
    pooled.Add(with_bad.data() + 2 * kWidth, 1);
    EXPECT_FALSE(pooled.Finite());
  }
  rows.assign(size_t{1000} * kWidth, std::numeric_limits<float>::max());
  pooled.Begin(internal::POOLING_MEAN);
  pooled.Add(rows.data(), 1000);
  EXPECT_TRUE(pooled.Finite());
  EXPECT_EQ(Bits(pooled)[0], std::bit_cast<uint32_t>(std::numeric_limits<float>::max()));
}

}  // namespace
}  // namespace bitshard
