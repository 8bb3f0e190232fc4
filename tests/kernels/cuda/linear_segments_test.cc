// y = W x in segments on CUDA: integer sums that are near the exact product and the same whatever
// the batch and the cut over ranks, and the count of what has no such sum.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/registry/device_kernels.h"
#include "tests/kernels/cuda/linear_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

using CudaSegments = DeviceKernelTest;

constexpr int64_t kTotal = 100;  // segments of the whole layer

// Columns [begin, end) of all rows of x[m][cols].
std::vector<float> SomeColumns(const std::vector<float>& x, int64_t cols, int64_t begin,
                               int64_t end) {
  std::vector<float> part;
  for (auto row = x.begin(); row != x.end(); row += cols)
    part.insert(part.end(), row + begin, row + end);
  return part;
}

void ExpectNear(const PackedMatrix& w, const HostActivations& x, const LinearResult& got,
                const std::string& name) {
  const double error = NormError(w, x, [&](int64_t token, int64_t row) {
    return static_cast<double>(got.sums[token * w.rows() + row]) * 0x1p-32;
  });
  const int64_t group = w.spec().type == PackedSpec::Type::kInt ? w.spec().group_size : 64;
  EXPECT_LE(error, LinearErrorBound(x.cols, std::min(group, x.segment_cols))) << name;
  EXPECT_EQ(got.poison, std::vector<int64_t>(x.m, 0)) << name;
}

TEST_F(CudaSegments, SumsAreNearTheExactProductInAnyBatch) {
  uint32_t seed = 0;
  for (const int64_t segment : {64, 16, 80, 128, 1024}) {
    for (const NamedSpec& named : AllSpecs(21, 400)) {
      // A fifth of them for each: all over the seeds.
      if (++seed % 5 != 0) continue;
      const PackedMatrix w = RandomMatrix(named.spec, seed);
      const std::vector<float> x = RandomFloats(17 * 400, seed);
      const HostActivations all(x, 17, 400, segment);
      const LinearResult whole = RunLinear(w, all, kTotal);
      ExpectNear(w, all, whole, named.name);
      for (const int64_t m : {1, 8, 9}) {
        const HostActivations part({x.end() - m * 400, x.end()}, m, 400, segment);
        const LinearResult got = RunLinear(w, part, kTotal);
        EXPECT_TRUE(std::equal(got.sums.begin(), got.sums.end(), whole.sums.end() - m * 21))
            << named.name << " m=" << m << " segment=" << segment;
      }
    }
  }
}

// Many tokens have a kernel of their own.
TEST_F(CudaSegments, ManyTokensGiveTheSumsOfFew) {
  constexpr int64_t kMany = 257, kCols = 400;
  uint32_t seed = 500;
  for (const int64_t segment : {64, 80, 1024}) {
    for (const PackedSpec& spec :
         {Q4Spec(24, kCols), IntSpec(150, kCols, {3, 64, ScaleKind::kBf16, ScaleOffset::kZero, 48}),
          IntSpec(24, kCols, {6, 16, ScaleKind::kSuperS8}),
          PackedSpec{.rows = 24, .cols = kCols, .type = PackedSpec::Type::kBf16}}) {
      const PackedMatrix w = RandomMatrix(spec, ++seed);
      std::vector<float> x = RandomFloats(kMany * kCols, seed);
      x[230 * kCols + 70] = std::numeric_limits<float>::quiet_NaN();
      const LinearResult many = RunLinear(w, HostActivations(x, kMany, kCols, segment), kTotal);
      const std::vector<float> last(x.end() - 33 * kCols, x.end());
      const LinearResult few = RunLinear(w, HostActivations(last, 33, kCols, segment), kTotal);
      EXPECT_TRUE(std::equal(few.sums.begin(), few.sums.end(), many.sums.end() - 33 * w.rows()))
          << spec.Describe() << " segment=" << segment;
      EXPECT_TRUE(std::equal(few.poison.begin(), few.poison.end(), many.poison.end() - 33))
          << spec.Describe() << " segment=" << segment;
      EXPECT_EQ(many.poison[230], w.rows());
    }
  }
}

// Ranks hold whole segments, also none; the sums of 1, 2 and 3 ranks are equal.
TEST_F(CudaSegments, SumsAddUpOverAnyCut) {
  constexpr uint64_t kRows = 24, kCols = 600;
  constexpr int64_t kTokens = 9;
  const std::vector<float> x = RandomFloats(kTokens * kCols, 3);
  uint32_t seed = 40;
  for (const NamedSpec& named : AllSpecs(kRows, kCols)) {
    if (named.spec.type != PackedSpec::Type::kInt) continue;
    const RawMatrix raw = RandomRaw(named.spec, ++seed);
    const LinearResult expected =
        RunLinear(Pack(raw), HostActivations(x, kTokens, kCols, 64), kTotal);
    const std::vector<std::vector<uint64_t>> cuts = {
        {0, 64, kCols}, {0, 0, 320, kCols}, {0, 192, 256, kCols}, {0, 320, 576, kCols}};
    const std::vector<uint64_t>& cut = cuts[seed % cuts.size()];
    std::vector<int64_t> sums(expected.sums.size(), 0);
    for (size_t rank = 0; rank + 1 < cut.size(); ++rank) {
      const uint64_t begin = cut[rank], end = cut[rank + 1];
      const HostActivations local(
          SomeColumns(x, kCols, static_cast<int64_t>(begin), static_cast<int64_t>(end)), kTokens,
          static_cast<int64_t>(end - begin), 64);
      const LinearResult got = RunLinear(Pack(CutColumns(raw, begin, end)), local, kTotal);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += got.sums[i];
    }
    EXPECT_EQ(sums, expected.sums) << named.name << " seed=" << seed;
  }
}

// Segments and groups that end within a run of 16 go another way, on every rank.
TEST_F(CudaSegments, SumsOfUnevenSegmentsAddUpOverAnyCut) {
  struct Case {
    SpecForm form;
    int64_t segment;
  };
  uint32_t seed = 70;
  for (const Case& c : std::vector<Case>{{{4, 32, ScaleKind::kF16, ScaleOffset::kMin}, 24},
                                         {{5, 40}, 48},
                                         {{2, 24, ScaleKind::kBf16, ScaleOffset::kZero}, 64},
                                         {{6, 16, ScaleKind::kSuperS8}, 40}}) {
    const RawMatrix raw = RandomRaw(IntSpec(18, 240, c.form), ++seed);
    const PackedMatrix w = Pack(raw);
    const std::vector<float> x = RandomFloats(3 * 240, seed);
    const HostActivations all(x, 3, 240, c.segment);
    const LinearResult expected = RunLinear(w, all, kTotal);
    ExpectNear(w, all, expected, raw.spec.Describe());
    std::vector<int64_t> sums(expected.sums.size(), 0);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, c.segment},
                                     {c.segment, 3 * c.segment},
                                     {3 * c.segment, 240}}) {
      const HostActivations local(SomeColumns(x, 240, begin, end), 3, end - begin, c.segment);
      const auto part = CutColumns(raw, static_cast<uint64_t>(begin), static_cast<uint64_t>(end));
      const LinearResult got = RunLinear(Pack(part), local, kTotal);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += got.sums[i];
    }
    EXPECT_EQ(sums, expected.sums) << raw.spec.Describe() << " segment=" << c.segment;
  }
}

TEST_F(CudaSegments, DenseMatricesAddUpOverAnyCut) {
  for (const auto type :
       {PackedSpec::Type::kF16, PackedSpec::Type::kBf16, PackedSpec::Type::kF32}) {
    for (const int64_t segment : {32, 24}) {
      const std::vector<float> values = RandomFloats(20 * 192, 5), x = RandomFloats(2 * 192, 6);
      const auto part = [&](int64_t begin, int64_t end) {
        PackedMatrixBuilder builder(
            {.rows = 20, .cols = static_cast<uint64_t>(end - begin), .type = type});
        for (int64_t row = 0; row < 20; ++row) {
          std::vector<float> f32;
          std::vector<uint16_t> half;
          for (int64_t k = begin; k < end; ++k) {
            f32.push_back(values[row * 192 + k]);
            half.push_back(type == PackedSpec::Type::kF16 ? F32ToF16(f32.back())
                                                          : F32ToBf16(f32.back()));
          }
          builder.SetDenseRow(static_cast<uint64_t>(row), type == PackedSpec::Type::kF32
                                                              ? static_cast<const void*>(f32.data())
                                                              : half.data());
        }
        return std::move(builder).Build();
      };
      const HostActivations all(x, 2, 192, segment);
      const PackedMatrix w = part(0, 192);
      const LinearResult expected = RunLinear(w, all, kTotal);
      ExpectNear(w, all, expected, w.spec().Describe());
      std::vector<int64_t> sums(expected.sums.size(), 0);
      for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, segment}, {segment, 192}}) {
        const HostActivations local(SomeColumns(x, 192, begin, end), 2, end - begin, segment);
        const LinearResult got = RunLinear(part(begin, end), local, kTotal);
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += got.sums[i];
      }
      EXPECT_EQ(sums, expected.sums) << w.spec().Describe() << " segment=" << segment;
    }
  }
}

TEST_F(CudaSegments, NonFiniteActivationsPoisonTheirRowOnly) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const PackedSpec& spec :
         {Q4Spec(17, 128), PackedSpec{.rows = 17, .cols = 128, .type = PackedSpec::Type::kBf16},
          PackedSpec{.rows = 17, .cols = 128, .type = PackedSpec::Type::kF32}}) {
      std::vector<float> x = RandomFloats(3 * 128, 6);
      x[128 + 70] = bad;
      const PackedMatrix w = RandomMatrix(spec, 5);
      const LinearResult got = RunLinear(w, HostActivations(x, 3, 128, 64), 2);
      EXPECT_EQ(got.poison, (std::vector<int64_t>{0, 17, 0})) << spec.Describe();
      // What is left is the other segment's.
      std::vector<float> without = x;
      std::fill(without.begin() + 128 + 64, without.begin() + 256, 0.0f);
      const LinearResult rest = RunLinear(w, HostActivations(without, 3, 128, 64), 2);
      EXPECT_TRUE(std::equal(got.sums.begin() + 17, got.sums.begin() + 34, rest.sums.begin() + 17));
    }
  }
}

TEST_F(CudaSegments, SumsBeyondTheLimitPoison) {
  for (const auto type : {PackedSpec::Type::kF32, PackedSpec::Type::kBf16}) {
    PackedMatrixBuilder builder({.rows = 2, .cols = 64, .type = type});
    const std::vector<float> ones(64, 1.0f);
    const std::vector<uint16_t> bf16_ones(64, F32ToBf16(1.0f));
    const std::vector<float> zeros(64, 0.0f);
    builder.SetDenseRow(0, type == PackedSpec::Type::kF32 ? static_cast<const void*>(ones.data())
                                                          : bf16_ones.data());
    builder.SetDenseRow(1, zeros.data());
    const PackedMatrix w = std::move(builder).Build();
    std::vector<float> x(64, 0.0f);
    x[3] = 0x1p29f;  // exactly 2^31 / 4
    LinearResult got = RunLinear(w, HostActivations(x, 1, 64, 64), 4);
    EXPECT_EQ(got.poison[0], 1);
    EXPECT_EQ(got.sums, (std::vector<int64_t>{0, 0}));
    x[3] = -0x1.ffcp28f;  // the next fp16
    got = RunLinear(w, HostActivations(x, 1, 64, 64), 4);
    EXPECT_EQ(got.poison[0], 0);
    EXPECT_EQ(got.sums[0], static_cast<int64_t>(double{x[3]} * 0x1p32));
  }
}

// As many as a launch takes.
TEST_F(CudaSegments, EightMatricesOfALaunchGiveTheBitsOfEach) {
  std::vector<PackedMatrix> matrices;
  std::vector<const PackedMatrix*> members;
  for (uint32_t i = 0; i < 8; ++i)
    matrices.push_back(RandomMatrix(IntSpec(8 + i, 64, {4, 32}), 300 + i));
  for (const PackedMatrix& matrix : matrices) members.push_back(&matrix);
  const HostActivations x(RandomFloats(3 * 64, 299), 3, 64, 64);
  const std::vector<LinearResult> together = RunLinear(members, x);
  for (size_t i = 0; i < members.size(); ++i)
    EXPECT_TRUE(SameBits(together[i], RunLinear(matrices[i], x))) << i;
}

TEST_F(CudaSegments, ARankWithoutColumnsHasZeroSums) {
  for (const PackedSpec& spec : {Q4Spec(33, 0), PackedSpec{.rows = 33, .cols = 0},
                                 IntSpec(33, 0, {3, 128, ScaleKind::kF32})}) {
    const LinearResult got = RunLinear(RandomMatrix(spec, 1), HostActivations({}, 2, 0, 64), 1);
    EXPECT_EQ(got.sums, std::vector<int64_t>(66, 0)) << spec.Describe();
    EXPECT_EQ(got.poison, std::vector<int64_t>(2, 0));
  }
}

}  // namespace
}  // namespace bitshard
