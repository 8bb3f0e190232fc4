// Synthetic weights: the same numbers however the whole is cut, spread as random weights of a layer
// are.
#include "kernels/tensor/synthetic.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "kernels/base/float_types.h"
#include "kernels/tensor/packed_matrix.h"
#include "tests/kernels/synthetic_specs.h"

namespace bitshard {
namespace {

constexpr char kName[] = "model.layers.3.mlp.up_proj.weight";

PackedSpec IntSpec(uint64_t rows, uint64_t cols, int bits, int group, ScaleKind scale, bool zeros) {
  PackedSpec spec;
  spec.rows = rows;
  spec.cols = cols;
  spec.type = PackedSpec::Type::kInt;
  spec.bits = bits;
  spec.zero_point = zeros ? 0 : 1 << (bits - 1);
  spec.group_size = group;
  spec.scale = scale;
  spec.offset = zeros ? ScaleOffset::kZero : ScaleOffset::kNone;
  return spec;
}

PackedSpec DenseSpec(uint64_t rows, uint64_t cols, PackedSpec::Type type) {
  PackedSpec spec;
  spec.rows = rows;
  spec.cols = cols;
  spec.type = type;
  return spec;
}

struct Cut {
  uint64_t rows, cols, row_begin, col_begin, whole_cols;
};

PackedMatrix Make(const PackedSpec& whole, const Cut& cut, uint64_t seed = 1) {
  const PackedSpec spec = SliceOf(whole, cut.rows, cut.cols, cut.row_begin, cut.col_begin);
  PackedMatrixBuilder builder(spec);
  const SyntheticSource source =
      SyntheticSourceOf(seed, kName, spec, cut.whole_cols, cut.row_begin, cut.col_begin);
  // Two calls, as two threads make it.
  FillSyntheticRows(source, 16, spec.rows, builder);
  FillSyntheticRows(source, 0, 16, builder);
  return std::move(builder).Build();
}

std::vector<float> Row(const PackedMatrix& matrix, int64_t row) {
  std::vector<float> out(static_cast<size_t>(matrix.cols()));
  matrix.RowToF32(row, out.data());
  return out;
}

std::vector<PackedSpec> AllKinds(uint64_t rows, uint64_t cols) {
  std::vector<PackedSpec> specs = SyntheticIntSpecs(rows, cols);
  for (const auto type : {PackedSpec::Type::kF32, PackedSpec::Type::kF16, PackedSpec::Type::kBf16})
    specs.push_back(DenseSpec(rows, cols, type));
  return specs;
}

// Cuts that meet no tile, word or group.
TEST(Synthetic, SlicesAreCutsOfOneWhole) {
  const uint64_t rows = 70, cols = 352;
  for (const PackedSpec& spec : AllKinds(rows, cols)) {
    const PackedMatrix whole = Make(spec, {rows, cols, 0, 0, cols});
    for (const Cut& cut :
         {Cut{33, 101, 7, 45, cols}, Cut{20, 352, 50, 0, cols}, Cut{70, 64, 0, 64, cols}}) {
      const PackedMatrix part = Make(spec, cut);
      for (uint64_t row = 0; row < cut.rows; ++row) {
        const std::vector<float> expected = Row(whole, static_cast<int64_t>(cut.row_begin + row));
        const std::vector<float> values = Row(part, static_cast<int64_t>(row));
        for (uint64_t col = 0; col < cut.cols; ++col) {
          ASSERT_EQ(values[col], expected[cut.col_begin + col])
              << spec.Describe() << " row " << row << " column " << col;
        }
      }
    }
  }
}

TEST(Synthetic, AnotherSeedNameRowOrColumnIsAnotherNumber) {
  const PackedSpec spec = DenseSpec(64, 256, PackedSpec::Type::kF32);
  const PackedMatrix matrix = Make(spec, {64, 256, 0, 0, 256});
  const PackedMatrix other_seed = Make(spec, {64, 256, 0, 0, 256}, /*seed=*/2);
  PackedMatrixBuilder builder(spec);
  FillSyntheticRows(SyntheticSourceOf(1, "model.layers.4.mlp.up_proj.weight", spec, 256, 0, 0), 0,
                    64, builder);
  const PackedMatrix other_name = std::move(builder).Build();
  // 256 values in all: two draws are equal one time in 256.
  int seed = 0, name = 0, row = 0, col = 0, pairs = 0;
  for (int64_t r = 0; r + 1 < 64; ++r) {
    const std::vector<float> here = Row(matrix, r), below = Row(matrix, r + 1);
    const std::vector<float> by_seed = Row(other_seed, r), by_name = Row(other_name, r);
    for (size_t c = 0; c + 1 < here.size(); ++c, ++pairs) {
      seed += here[c] == by_seed[c];
      name += here[c] == by_name[c];
      row += here[c] == below[c];
      col += here[c] == here[c + 1];
    }
  }
  for (const int equal : {seed, name, row, col}) {
    EXPECT_GT(equal, pairs / 512);
    EXPECT_LT(equal, pairs / 128);
  }
}

TEST(Synthetic, EveryCodeComesAsOftenAsTheOthers) {
  for (int bits = 2; bits <= 8; ++bits) {
    const uint64_t rows = 64, cols = 1024;
    const PackedMatrix matrix =
        Make(IntSpec(rows, cols, bits, 128, ScaleKind::kBf16, false), {rows, cols, 0, 0, cols});
    std::vector<double> counts(size_t{1} << bits);
    for (int64_t row = 0; row < matrix.rows(); ++row) {
      for (int64_t col = 0; col < matrix.cols(); ++col)
        ++counts[static_cast<size_t>(matrix.CodeAt(row, col))];
    }
    const double expected = static_cast<double>(rows * cols) / static_cast<double>(counts.size());
    // Chi-squared of so many codes, less one: its mean is that number, its variance twice that.
    double chi = 0;
    for (const double count : counts) chi += (count - expected) * (count - expected) / expected;
    const double freedom = static_cast<double>(counts.size() - 1);
    EXPECT_LT(chi, freedom + 5 * std::sqrt(2 * freedom)) << bits;
  }
}

// A layer keeps the size of what it gets, whether that has a mean or not, and adds none.
TEST(Synthetic, RowsTimesAVectorOfOnesOrOfSignsAreAboutItsSize) {
  for (const uint64_t cols : {uint64_t{512}, uint64_t{1024}}) {
    for (const PackedSpec& spec : AllKinds(64, cols)) {
      const PackedMatrix matrix = Make(spec, {64, cols, 0, 0, cols});
      double ones = 0, signs = 0, mean = 0;
      for (int64_t row = 0; row < matrix.rows(); ++row) {
        const std::vector<float> values = Row(matrix, row);
        double sum = 0, alternating = 0;
        for (size_t col = 0; col < values.size(); ++col) {
          ASSERT_TRUE(std::isfinite(values[col]));
          sum += values[col];
          alternating += SyntheticBits(5, 0, col) % 2 == 0 ? values[col] : -values[col];
        }
        ones += sum * sum;
        signs += alternating * alternating;
        mean += sum;
      }
      const double rows = static_cast<double>(matrix.rows());
      EXPECT_GT(std::sqrt(signs / rows), 0.4) << spec.Describe();
      EXPECT_LT(std::sqrt(signs / rows), 3.0) << spec.Describe();
      // Of codes around 2^(bits - 1), half a code a column adds up: for 2 bits most, and the longer
      // one sign counts.
      const bool whole_rows = spec.group_size == static_cast<int>(cols);
      const bool super_blocks = IsSuper(spec.scale) && spec.has_min();
      EXPECT_LT(std::sqrt(ones / rows), whole_rows     ? 30.0
                                        : super_blocks ? 12.0
                                                       : 6.0)
          << spec.Describe();
      EXPECT_LT(std::abs(mean / rows), 5 * std::sqrt(ones) / rows) << spec.Describe();
    }
  }
}

TEST(Synthetic, AVectorIsOnesAndABiasIsSmall) {
  std::vector<float> norm(100), bias(100), part(30);
  FillSyntheticVector(1, "model.norm.weight", 0, norm.size(), norm.data());
  EXPECT_EQ(norm, std::vector<float>(100, 1.0f));
  FillSyntheticVector(1, "model.layers.0.self_attn.q_proj.bias", 0, bias.size(), bias.data());
  int below = 0;
  for (const float value : bias) {
    EXPECT_GE(std::abs(value), 0.0625f);
    EXPECT_LT(std::abs(value), 0.125f);
    below += value < 0;
  }
  EXPECT_GT(below, 25);
  EXPECT_LT(below, 75);
  FillSyntheticVector(1, "model.layers.0.self_attn.q_proj.bias", 13, part.size(), part.data());
  EXPECT_EQ(part, std::vector<float>(bias.begin() + 13, bias.begin() + 43));
}

TEST(Synthetic, AScaleFactorThatLeavesNoNumbersIsRefused) {
  PackedSpec spec = IntSpec(16, 256, 4, 32, ScaleKind::kE4m3, false);
  EXPECT_TRUE(CheckSynthetic(spec).ok());
  for (const float factor : {0.0f, -1.0f, INFINITY}) {
    spec.scale_factor = factor;
    EXPECT_EQ(CheckSynthetic(spec).code(), absl::StatusCode::kInvalidArgument) << factor;
    EXPECT_NE(CheckSynthetic(spec).message().find("e4m3"), std::string::npos);
  }
  spec.scale_factor = 0;
  spec.scale = ScaleKind::kNested;
  EXPECT_TRUE(CheckSynthetic(spec).ok());
  spec.scale_factor = INFINITY;
  EXPECT_EQ(CheckSynthetic(spec).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(CheckSynthetic(spec).message().find("nested"), std::string::npos);
  spec.scale = ScaleKind::kF16;  // has none
  EXPECT_TRUE(CheckSynthetic(spec).ok());
}

// Scales of f16 below its normal numbers, and those of e4m3, over all exponents that they may have.
TEST(Synthetic, SmallNumbersAreTheSameInEveryType) {
  for (uint32_t draw : {0u, 0x7fu, 0x55u, 0x8001u, 0xffffu}) {
    for (int exponent = kLeastSyntheticF16; exponent <= 0; ++exponent) {
      const float wanted = Bf16ToF32(SyntheticBf16(draw, exponent));
      EXPECT_EQ(F16ToF32(SyntheticF16(draw, exponent)), wanted) << draw << " " << exponent;
      EXPECT_EQ(std::bit_cast<float>(SyntheticF32(draw, exponent)), wanted);
      EXPECT_EQ(std::ilogb(wanted), exponent);
    }
    for (int exponent = -9; exponent <= 7; ++exponent) {
      const float value = E4m3ToF32(static_cast<uint8_t>(SyntheticE4m3(draw, exponent)));
      EXPECT_EQ(std::ilogb(value), exponent) << draw;
      EXPECT_EQ(std::signbit(value), (draw & 0x8000u) != 0);
      if (exponent < -6) continue;  // with fewer m
      EXPECT_EQ(std::abs(value), std::ldexp(1.0f + 0.125f * (draw & 7), exponent));
    }
  }
}

}  // namespace
}  // namespace bitshard
