// Values come back exactly, memory stays within its promise, impossible specs are refused.
#include "kernels/tensor/packed_matrix.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/tensor/p16x64.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

TEST(PackedMatrix, IntegerRowsComeBackExactly) {
  for (int bits = 2; bits <= 8; ++bits) {
    for (bool has_min : {false, true}) {
      const uint64_t rows = 21, cols = 150;
      const PackedSpec spec{.rows = rows,
                            .cols = cols,
                            .type = PackedSpec::Type::kInt,
                            .bits = bits,
                            .zero_point = (1 << bits) / 2,
                            .group_size = 32,
                            .has_min = has_min,
                            .first_group_offset = 24};
      ASSERT_EQ(spec.groups(), 6u);
      PackedMatrixBuilder builder(spec);
      std::vector<std::vector<uint8_t>> codes(rows, std::vector<uint8_t>(cols));
      std::vector<std::vector<uint16_t>> scales(rows, std::vector<uint16_t>(6)), mins = scales;
      for (uint64_t r = 0; r < rows; ++r) {
        for (uint64_t k = 0; k < cols; ++k)
          codes[r][k] = static_cast<uint8_t>((r * 31 + k * 7 + r * k) & ((1 << bits) - 1));
        for (int g = 0; g < 6; ++g) {
          scales[r][g] = F32ToF16(0.1f * static_cast<float>(r + 1) + static_cast<float>(g));
          mins[r][g] = F32ToF16(0.3f * static_cast<float>(g) - static_cast<float>(r));
        }
        builder.SetIntRow(r, codes[r].data(), scales[r].data(), has_min ? mins[r].data() : nullptr);
      }
      const PackedMatrix w = std::move(builder).Build();
      std::vector<float> row(cols);
      for (uint64_t r = 0; r < rows; ++r) {
        w.RowToF32(r, row.data());
        for (uint64_t k = 0; k < cols; ++k) {
          const uint64_t g = (k + 24) / 32;
          const float centred = static_cast<float>(codes[r][k] - spec.zero_point);
          const float scale = F16ToF32(scales[r][g]);
          const float expected =
              has_min ? std::fma(centred, scale, F16ToF32(mins[r][g])) : centred * scale;
          ASSERT_EQ(row[k], expected) << "bits=" << bits << " row=" << r << " col=" << k;
          ASSERT_EQ(w.ValueAt(r, k), expected);
        }
        std::vector<float> part(40);
        w.RowToF32(r, 33, 73, part.data());
        for (int k = 0; k < 40; ++k) ASSERT_EQ(part[k], row[33 + k]);
      }
    }
  }
}

TEST(PackedMatrix, DenseRowsComeBackExactly) {
  const uint64_t rows = 18, cols = 50;
  for (auto type : {PackedSpec::Type::kF32, PackedSpec::Type::kF16, PackedSpec::Type::kBf16}) {
    PackedMatrixBuilder builder({.rows = rows, .cols = cols, .type = type});
    const std::vector<float> values = RandomFloats(rows * cols, 3);
    std::vector<uint16_t> half(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      half[i] = type == PackedSpec::Type::kF16 ? F32ToF16(values[i]) : F32ToBf16(values[i]);
    }
    for (uint64_t r = 0; r < rows; ++r) {
      builder.SetDenseRow(r, type == PackedSpec::Type::kF32
                                 ? static_cast<const void*>(&values[r * cols])
                                 : &half[r * cols]);
    }
    const PackedMatrix w = std::move(builder).Build();
    std::vector<float> row(cols);
    for (uint64_t r = 0; r < rows; ++r) {
      w.RowToF32(r, row.data());
      for (uint64_t k = 0; k < cols; ++k) {
        const size_t i = r * cols + k;
        EXPECT_EQ(row[k], type == PackedSpec::Type::kF32   ? values[i]
                          : type == PackedSpec::Type::kF16 ? F16ToF32(half[i])
                                                           : Bf16ToF32(half[i]));
      }
    }
  }
}

TEST(PackedMatrix, PaddingHasZeroScalesAndZeroPointCodes) {
  const PackedMatrix w = RandomMatrix(Q8Spec(17, 70), 1);
  for (int r = 17; r < 32; ++r) {
    for (int g = 0; g < 3; ++g) EXPECT_EQ(w.ScaleAt(r, g), 0.0f);
  }
  for (int k = 70; k < 128; ++k) EXPECT_EQ(w.CodeAt(16, k), 128);
}

TEST(PackedMatrix, TakesNoMoreThanItsPromise) {
  // SmolLM2's matrices, where nothing is padded: exactly the source's bytes.
  const PackedSpec q4 = Q4Spec(1536, 576), q8 = Q8Spec(576, 1536);
  EXPECT_EQ(*PackedBytes(q4), 1536u * (576 / 32) * 20);
  EXPECT_EQ(*PackedBytes(q8), 576u * (1536 / 32) * 34);
  EXPECT_EQ(*PackedBytes({.rows = 576, .cols = 1536, .type = PackedSpec::Type::kBf16}),
            576u * 1536 * 2);
  EXPECT_EQ(RandomMatrix(Q4Spec(40, 100), 1).bytes(), *PackedBytes(Q4Spec(40, 100)));
}

TEST(PackedMatrix, RefusesImpossibleSpecs) {
  const auto refused = [](PackedSpec spec) {
    return !PackedBytes(spec).ok() && !PackedMatrixBuilder::Create(spec).ok();
  };
  PackedSpec good = Q4Spec(16, 64);
  EXPECT_TRUE(PackedBytes(good).ok());
  PackedSpec bad = good;
  bad.bits = 9;
  EXPECT_TRUE(refused(bad));
  bad = good, bad.bits = 1;
  EXPECT_TRUE(refused(bad));
  bad = good, bad.zero_point = 16;
  EXPECT_TRUE(refused(bad));
  bad = good, bad.group_size = 0;
  EXPECT_TRUE(refused(bad));
  bad = good, bad.first_group_offset = 32;
  EXPECT_TRUE(refused(bad));
  bad = good, bad.rows = uint64_t{1} << 40;
  EXPECT_TRUE(refused(bad));
  bad = {.rows = uint64_t{1} << 31, .cols = uint64_t{1} << 31, .type = PackedSpec::Type::kF32};
  EXPECT_TRUE(refused(bad));
}

TEST(PackedMatrix, LanesAndSlotsArePermutations) {
  unsigned lanes = 0, slots = 0;
  for (int i = 0; i < 16; ++i) lanes |= 1u << LaneOfColumn(i), slots |= 1u << ScaleSlotOfRow(i);
  EXPECT_EQ(lanes, 0xffffu);
  EXPECT_EQ(slots, 0xffffu);
  // The order inside the words of P16x64, as design and golden have it.
  std::vector<uint32_t> tile(TileBytes(8) / 4, 0);
  for (int col = 0; col < 16; ++col)
    PutCode(tile.data(), 8, 3, col, static_cast<uint32_t>(col + 1));
  const auto* bytes = reinterpret_cast<const uint8_t*>(tile.data()) + 3 * 16;
  for (int col = 0; col < 16; ++col) EXPECT_EQ(bytes[LaneOfColumn(col)], col + 1);
}

}  // namespace
}  // namespace bitshard
