// The forms of activations: equal bits on every ISA, whole rows or in parts, and near what they
// stand for.
#include "kernels/registry/activations.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/tensor/packed_matrix.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512Vnni};
constexpr unsigned kAllForms = kFormF32 | kFormA16 | kFormA8;

PreparedActivations Reserved(int64_t rows, int64_t cols, int64_t segment) {
  PreparedActivations prepared;
  prepared.Reserve(rows, cols, segment);
  return prepared;
}

// Segments that are no multiples of 16 have no run sums.
void ExpectSame(const PreparedActivations& got, const PreparedActivations& expected, int64_t row,
                bool run_sums) {
  const size_t cols = static_cast<size_t>(got.padded_cols());
  const auto same = [](const void* a, const void* b, size_t bytes) {
    return std::memcmp(a, b, bytes) == 0;
  };
  EXPECT_TRUE(same(got.f32(row), expected.f32(row), cols * 4));
  EXPECT_TRUE(same(got.q(row), expected.q(row), cols * 2));
  EXPECT_TRUE(same(got.hi(row), expected.hi(row), cols));
  EXPECT_TRUE(same(got.lo(row), expected.lo(row), cols));
  EXPECT_TRUE(same(got.scales(row), expected.scales(row), got.groups() * 4));
  EXPECT_TRUE(same(got.a8(row), expected.a8(row), cols));
  EXPECT_TRUE(same(got.a8_scales(row), expected.a8_scales(row), got.a8_groups() * 4));
  if (!run_sums) return;
  EXPECT_TRUE(same(got.run_sums(row), expected.run_sums(row), cols / 16 * 4));
  EXPECT_TRUE(same(got.pair_sums(row), expected.pair_sums(row), cols / 16 * 4));
  EXPECT_TRUE(same(got.a8_run_sums(row), expected.a8_run_sums(row), cols / 16 * 4));
}

// Zeros, subnormals and the largest numbers among ordinary ones.
std::vector<float> TwoRows(int64_t cols) {
  std::vector<float> x = RandomFloats(2 * cols, 9);
  for (int64_t i = 0; i < 16 && i < cols; ++i) x[i] = 0;
  x[cols - 1] = 1e-42f;
  x[cols] = cols > 1 ? 3e38f : 0;
  return x;
}

constexpr int64_t kCols[] = {1, 16, 40, 64, 65, 200, 576};
constexpr int64_t kSegments[] = {0, 16, 24, 32, 64, 80, 96};

TEST(PreparedActivations, EveryIsaGivesTheSameForms) {
  ThreadPool pool(1);
  for (int64_t cols : kCols) {
    for (int64_t segment : kSegments) {
      const std::vector<float> x = TwoRows(cols);
      PreparedActivations expected = Reserved(2, cols, segment), got = Reserved(2, cols, segment);
      expected.Prepare(x.data(), 2, cols, cols, segment, kAllForms, Isa::kScalar, pool);
      for (Isa isa : kAllIsas) {
        if (!HasIsa(isa)) continue;
        SCOPED_TRACE(testing::Message()
                     << IsaName(isa) << " cols=" << cols << " segment=" << segment);
        got.Prepare(x.data(), 2, cols, cols, segment, kAllForms, isa, pool);
        for (int row = 0; row < 2; ++row) ExpectSame(got, expected, row, segment % 16 == 0);
      }
    }
  }
}

TEST(PreparedActivations, PartsInAnyOrderGiveTheWholeRow) {
  ThreadPool pool(1);
  for (int64_t cols : kCols) {
    for (int64_t segment : kSegments) {
      if (segment == 0) continue;
      const std::vector<float> x = TwoRows(cols);
      PreparedActivations expected = Reserved(2, cols, segment), got = Reserved(2, cols, segment);
      // What an earlier use has left behind must not show.
      const std::vector<float> old(2 * cols, 7.0f);
      got.Prepare(old.data(), 2, cols, cols, segment, kAllForms, BestIsa(), pool);
      expected.Prepare(x.data(), 2, cols, cols, segment, kAllForms, BestIsa(), pool);
      got.Begin(2, cols, segment, kAllForms, BestIsa());
      const int64_t segments = (cols + segment - 1) / segment;
      for (int64_t s = segments - 1; s >= 0; --s) {
        const int64_t begin = s * segment, end = std::min(cols, begin + segment);
        for (int row = 0; row < 2; ++row)
          got.PrepareSegments(row, begin, end, x.data() + row * cols + begin);
      }
      SCOPED_TRACE(testing::Message() << "cols=" << cols << " segment=" << segment);
      for (int row = 0; row < 2; ++row) ExpectSame(got, expected, row, segment % 16 == 0);
    }
  }
}

TEST(PreparedActivations, QuantizeToWithinHalfAStep) {
  ThreadPool pool(1);
  const std::vector<float> x = RandomFloats(128, 4);
  PreparedActivations prepared = Reserved(1, 128, 0);
  prepared.Prepare(x.data(), 1, 128, 128, 0, kAllForms, BestIsa(), pool);
  for (int k = 0; k < 128; ++k) {
    const int at = k / 16 * 16 + LaneOfColumn(k % 16);
    const float s = prepared.scales(0)[k / 64], s8 = prepared.a8_scales(0)[k / 32];
    EXPECT_EQ(prepared.f32(0)[at], x[k]);
    EXPECT_NEAR(prepared.q(0)[at] * double{s}, x[k], s * 0.501);
    EXPECT_EQ(prepared.q(0)[at], 256 * prepared.hi(0)[at] + prepared.lo(0)[at]);
    EXPECT_NEAR(prepared.a8(0)[at] * double{s8}, x[k], s8 * 0.501);
  }
}

TEST(PreparedActivations, A8ScaleIsTheLargestMagnitudeOver127AndRestartsAtSegments) {
  ThreadPool pool(1);
  std::vector<float> x(96, 1.0f);
  x[0] = -254.0f;  // group 0 of segment 0: columns 0-31
  x[40] = 127.0f;  // its second group: 32-47
  x[48] = 63.5f;   // segment 1: 48-79, and 80-95
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    PreparedActivations prepared = Reserved(1, 96, 48);
    prepared.Prepare(x.data(), 1, 96, 96, 48, kFormA8, isa, pool);
    ASSERT_EQ(prepared.a8_groups(), 4);
    EXPECT_EQ(prepared.a8_scales(0)[0], 2.0f);
    EXPECT_EQ(prepared.a8_scales(0)[1], 1.0f);
    EXPECT_EQ(prepared.a8_scales(0)[2], 0.5f);
    EXPECT_EQ(prepared.a8_scales(0)[3], 1.0f / 127.0f);
    EXPECT_EQ(prepared.a8(0)[0], -127);
    EXPECT_EQ(prepared.a8(0)[LaneOfColumn(1)], 0);  // 1 / 2 rounds to even
    EXPECT_EQ(prepared.a8(0)[32 + LaneOfColumn(8)], 127);
    EXPECT_EQ(prepared.a8_run_sums(0)[0], -127);
    EXPECT_EQ(prepared.a8_run_sums(0)[2], 127 + 15);
    EXPECT_EQ(prepared.a8_run_sums(0)[3], 127 + 15 * 2);
  }
}

TEST(PreparedActivations, NonFiniteGroupsGetNanScales) {
  ThreadPool pool(1);
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    std::vector<float> x = RandomFloats(192, 4);
    x[70] = -std::numeric_limits<float>::infinity();
    x[191] = -std::numeric_limits<float>::quiet_NaN();
    PreparedActivations prepared = Reserved(1, 192, 0);
    prepared.Prepare(x.data(), 1, 192, 192, 0, kAllForms, isa, pool);
    for (int group = 0; group < 3; ++group)
      EXPECT_EQ(std::isnan(prepared.scales(0)[group]), group >= 1) << group;
    for (int group = 0; group < 6; ++group)
      EXPECT_EQ(std::isnan(prepared.a8_scales(0)[group]), group == 2 || group == 5) << group;
    EXPECT_EQ(prepared.q(0)[100], 0);
    EXPECT_EQ(prepared.a8(0)[64], 0);
    EXPECT_EQ(prepared.a8(0)[191], 0);
  }
}

}  // namespace
}  // namespace bitshard
