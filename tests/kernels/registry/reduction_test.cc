// Between f32 and the integers in which ranks add up.
#include "kernels/registry/reduction.h"

#include <bit>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

TEST(Reduction, RoundsToEvenAtTwoToTheMinus32) {
  EXPECT_EQ(F32ToFixed(1.0f), int64_t{1} << 32);
  EXPECT_EQ(F32ToFixed(-1.5f), -(int64_t{3} << 31));
  EXPECT_EQ(F32ToFixed(0x1p-33f), 0);      // a half, to even
  EXPECT_EQ(F32ToFixed(3 * 0x1p-33f), 2);  // one and a half, to even
  EXPECT_EQ(F32ToFixed(-0x1p-33f), 0);
  EXPECT_EQ(F32ToFixed(0x1.000002p-33f), 1);
  EXPECT_EQ(F32ToFixed(-0.0f), 0);
  EXPECT_EQ(F32ToFixed(std::nextafterf(0x1p31f, 0.0f)), 0x7fffff8000000000);
}

TEST(Reduction, ComesBackThroughDouble) {
  EXPECT_EQ(FixedToF32(int64_t{1} << 32), 1.0f);
  EXPECT_EQ(FixedToF32(-1), -0x1p-32f);
  EXPECT_EQ(FixedToF32(0), 0.0f);
  for (float v : RandomFloats(1000, 1, 100.0f)) {
    const float back = FixedToF32(F32ToFixed(v));
    EXPECT_NEAR(back, v, 0x1p-33 + std::fabs(v) * 0x1p-24);
  }
}

TEST(Reduction, GatheredRowsOfTwoRanksAddUpToTheEmbedding) {
  ThreadPool pool(2);
  const PackedMatrix low = RandomMatrix(Q4Spec(64, 96), 1), high = RandomMatrix(Q8Spec(37, 96), 2);
  const std::vector<int32_t> tokens = {0, 63, 64, 100, 5, 101, 1000};
  std::vector<int64_t> sums(tokens.size() * 96), part(sums.size(), -1);
  GatherRawBits(low, 0, tokens, sums.data(), 96, pool);
  GatherRawBits(high, 64, tokens, part.data(), 96, pool);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
  for (size_t t = 0; t < tokens.size(); ++t) {
    std::vector<float> row(96, 0.0f);
    if (tokens[t] < 64) {
      low.RowToF32(tokens[t], row.data());
    } else if (tokens[t] < 101) {
      high.RowToF32(tokens[t] - 64, row.data());
    }
    for (int k = 0; k < 96; ++k) {
      EXPECT_EQ(sums[t * 96 + k], int64_t{std::bit_cast<uint32_t>(row[k])})
          << tokens[t] << " " << k;
    }
  }
}

}  // namespace
}  // namespace bitshard
