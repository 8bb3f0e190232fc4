// Values come back exactly, memory stays within its promise, impossible specs are refused.
#include "kernels/tensor/packed_matrix.h"

#include <cmath>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/tensor/p16x64.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

// One value by the plain meaning of the raw numbers, apart from all code of the planes.
float PlainScale(const RawMatrix& raw, uint64_t row, uint64_t group) {
  const PackedSpec& spec = raw.spec;
  const uint64_t groups = spec.groups();
  uint64_t scale_row = row;
  if (spec.block_rows == 0) scale_row = 0;
  if (spec.block_rows > 1) scale_row = (row + spec.first_row_offset) / spec.block_rows;
  const uint64_t i = scale_row * groups + group;
  const auto number = [&raw, i](auto value) {
    std::memcpy(&value, raw.scales.data() + i * sizeof(value), sizeof(value));
    return value;
  };
  const uint64_t super = row * spec.super_blocks() + group * spec.group_size / 256;
  switch (spec.scale) {
    case ScaleKind::kF16:
      return F16ToF32(number(uint16_t{}));
    case ScaleKind::kBf16:
      return Bf16ToF32(number(uint16_t{}));
    case ScaleKind::kF32:
      return number(float{});
    case ScaleKind::kE8m0:
      return std::ldexp(1.0f, raw.scales[i] - 127);
    case ScaleKind::kE4m3: {
      const int exponent = raw.scales[i] >> 3 & 15, mantissa = raw.scales[i] & 7;
      const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                            : std::ldexp(8.0f + mantissa, exponent - 10);
      return (raw.scales[i] >> 7 ? -magnitude : magnitude) * spec.scale_factor;
    }
    case ScaleKind::kNested: {
      const uint64_t block = spec.first_block + row * spec.source_row_groups + group;
      const float product =
          raw.table[raw.scales[i]] * raw.second[block / 256 - spec.first_block / 256];
      return product + spec.scale_factor;
    }
    case ScaleKind::kSuperS8:
      return F16ToF32(raw.super_scales[super]) *
             static_cast<float>(static_cast<int8_t>(raw.scales[i]));
    case ScaleKind::kSuperU8Min:
      return F16ToF32(raw.super_scales[super]) * static_cast<float>(raw.scales[i]);
    case ScaleKind::kSuperU4Min:
      return F16ToF32(raw.super_scales[super]) * static_cast<float>(raw.scales[i] % 16);
  }
  return NAN;
}

float PlainValue(const RawMatrix& raw, uint64_t row, uint64_t col) {
  const PackedSpec& spec = raw.spec;
  const uint64_t group = (spec.first_group_offset + col) / spec.group_size;
  const uint64_t i = row * spec.groups() + group;
  const int zero = raw.zeros.empty() ? spec.zero_point : raw.zeros[i];
  const auto centred = static_cast<float>(raw.codes[row * spec.cols + col] - zero);
  const float scale = PlainScale(raw, row, group);
  const uint64_t super = row * spec.super_blocks() + group * spec.group_size / 256;
  if (!raw.mins.empty()) return std::fma(centred, scale, F16ToF32(raw.mins[i]));
  if (spec.scale == ScaleKind::kSuperU8Min)
    return std::fma(centred, scale, -(F16ToF32(raw.super_mins[super]) * raw.sub_mins[i]));
  if (spec.scale == ScaleKind::kSuperU4Min)
    return std::fma(centred, scale, -(F16ToF32(raw.super_mins[super]) * (raw.scales[i] / 16)));
  return centred * scale;
}

void ExpectExact(const PackedSpec& spec, uint32_t seed) {
  const RawMatrix raw = RandomRaw(spec, seed);
  const PackedMatrix w = Pack(raw);
  ASSERT_EQ(w.bytes(), *PackedBytes(spec)) << spec.Describe();
  std::vector<float> row(spec.cols), part(spec.cols);
  const int64_t middle = static_cast<int64_t>(spec.cols) / 2 + 1;
  for (uint64_t r = 0; r < spec.rows; ++r) {
    w.RowToF32(static_cast<int64_t>(r), row.data());
    const auto end = static_cast<int64_t>(spec.cols);
    if (middle < end) w.RowToF32(static_cast<int64_t>(r), middle, end, part.data());
    for (uint64_t k = 0; k < spec.cols; ++k) {
      const float expected = PlainValue(raw, r, k);
      ASSERT_EQ(row[k], expected) << spec.Describe() << " from " << spec.first_group_offset
                                  << ", row " << r << ", column " << k;
      ASSERT_EQ(w.ValueAt(static_cast<int64_t>(r), static_cast<int64_t>(k)), expected);
      if (static_cast<int64_t>(k) >= middle) {
        ASSERT_EQ(part[k - middle], expected);
      }
    }
  }
}

TEST(PackedMatrix, EverySpecOfTheTableComesBackExactly) {
  for (const auto& [rows, cols] : std::vector<std::pair<uint64_t, uint64_t>>{
           {1, 16}, {16, 64}, {21, 150}, {37, 531}, {33, 1024}}) {
    for (const NamedSpec& named : AllSpecs(rows, cols)) {
      if (named.spec.type == PackedSpec::Type::kInt) ExpectExact(named.spec, 20240 + rows);
    }
  }
}

// Every kind of scale, whatever beside it, at every width and cut: also those that no format asks
// for today.
TEST(PackedMatrix, EveryKindOffsetWidthAndCutComesBackExactly) {
  for (int kind = 0; kind <= static_cast<int>(ScaleKind::kSuperU4Min); ++kind) {
    const auto scale = static_cast<ScaleKind>(kind);
    for (int bits = 2; bits <= 8; ++bits) {
      for (const ScaleOffset offset : {ScaleOffset::kNone, ScaleOffset::kMin, ScaleOffset::kZero}) {
        if (IsSuper(scale) && offset != ScaleOffset::kNone) continue;
        for (const int group_size : {16, 32, 64, 128}) {
          const int period = IsSuper(scale) ? 256 : group_size;
          for (const int from : {0, 1, 16, period / 2, period - 1}) {
            if (from >= period) continue;
            ExpectExact(IntSpec(18, 75,
                                {.bits = bits,
                                 .group_size = group_size,
                                 .scale = scale,
                                 .offset = offset,
                                 .first_group_offset = from}),
                        static_cast<uint32_t>(kind * 100 + from));
          }
        }
      }
    }
  }
}

TEST(PackedMatrix, ScalesOfBlocksOfRowsComeBackExactly) {
  for (const ScaleKind scale :
       {ScaleKind::kF16, ScaleKind::kBf16, ScaleKind::kF32, ScaleKind::kE8m0, ScaleKind::kE4m3}) {
    for (const int block_rows : {0, 2, 16, 24, 128}) {
      for (const int from_row : {0, 1, block_rows - 1}) {
        if (from_row < 0 || (from_row > 0 && from_row >= block_rows)) continue;
        ExpectExact(IntSpec(50, 200,
                            {.bits = 8,
                             .group_size = 128,
                             .scale = scale,
                             .first_group_offset = 48,
                             .block_rows = block_rows,
                             .first_row_offset = from_row}),
                    7);
      }
    }
  }
}

// Nested scales count the blocks of the whole source: a rank's rows begin anywhere.
TEST(PackedMatrix, NestedScalesFindTheirSecondLevelFromAnyFirstBlock) {
  for (const uint64_t first : {0, 1, 255, 256, 100000}) {
    PackedSpec spec = IntSpec(40, 512, {.group_size = 64, .scale = ScaleKind::kNested});
    spec.first_block = first;
    spec.source_row_groups = 19;
    ExpectExact(spec, static_cast<uint32_t>(first));
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

TEST(PackedMatrix, PaddedRowsHaveNoScaleInAnyKind) {
  for (const NamedSpec& named : AllSpecs(17, 70)) {
    if (named.spec.type != PackedSpec::Type::kInt) continue;
    const PackedMatrix w = RandomMatrix(named.spec, 1);
    const ScaleView view = w.scale_view();
    for (int row = 17; row < 32; ++row) {
      for (int64_t g = 0; g < w.groups(); ++g) {
        EXPECT_EQ(w.ScaleAt(row, g), 0.0f) << named.name;
        EXPECT_EQ(w.MinAt(row, g), 0.0f) << named.name;
      }
    }
    for (int64_t g = 0; g < w.groups(); ++g) {
      float scale[16];
      ScalesOfGroup(view, 1, g, scale);
      for (int row = 16; row < 32; ++row)
        EXPECT_EQ(scale[ScaleSlotOfRow(row % 16)], w.ScaleAt(row, g)) << named.name;
    }
  }
}

TEST(PackedMatrix, RowsMayComeInAnyOrderAndThreadsMayShareTheTiles) {
  const RawMatrix raw = RandomRaw(
      IntSpec(40, 200, {.bits = 2, .scale = ScaleKind::kBf16, .offset = ScaleOffset::kZero}), 5);
  const PackedMatrix in_order = Pack(raw);
  PackedMatrixBuilder builder(raw.spec);
  const auto set = [&](uint64_t row) {
    const uint64_t groups = raw.spec.groups();
    builder.SetIntRow(
        row, raw.codes.data() + row * raw.spec.cols,
        {.scales = raw.scales.data() + 2 * row * groups, .zeros = raw.zeros.data() + row * groups});
  };
  std::thread second([&] {
    for (uint64_t row = 31; row >= 16; --row) set(row);
  });
  for (uint64_t row = 0; row < 16; ++row) set(row);
  for (uint64_t row = 39; row >= 32; --row) set(row);
  second.join();
  const PackedMatrix w = std::move(builder).Build();
  for (int64_t tile = 0; tile < w.row_tiles(); ++tile)
    EXPECT_EQ(std::memcmp(w.tile(tile), in_order.tile(tile), w.tile_bytes()), 0);
  EXPECT_EQ(std::memcmp(w.scale_view().plane, in_order.scale_view().plane,
                        w.row_tiles() * w.scale_view().tile_bytes),
            0);
}

// The promise: at most 1.05 x the bytes of the source, when nothing is padded. Bits of
// the source for each group of columns and row, by the formats' layouts.
TEST(PackedMatrix, TakesNoMoreThanItsPromise) {
  constexpr uint64_t kRows = 512, kCols = 2048;
  struct Source {
    const char* name;
    SpecForm form;
    double bits_per_group;
  };
  using Kind = ScaleKind;
  std::vector<Source> sources = {
      {"q4_0", {4, 32, Kind::kF16}, 8 * 18},
      {"q4_1", {4, 32, Kind::kF16, ScaleOffset::kMin}, 8 * 20},
      {"q5_0", {5, 32, Kind::kF16}, 8 * 22},
      {"q5_1", {5, 32, Kind::kF16, ScaleOffset::kMin}, 8 * 24},
      {"q8_0", {8, 32, Kind::kF16}, 8 * 34},
      {"q2_k", {2, 16, Kind::kSuperU4Min}, 8 * 84 / 16.0},
      {"q3_k", {3, 16, Kind::kSuperS8}, 8 * 110 / 16.0},
      {"q4_k", {4, 32, Kind::kSuperU8Min}, 8 * 144 / 8.0},
      {"q5_k", {5, 32, Kind::kSuperU8Min}, 8 * 176 / 8.0},
      {"q6_k", {6, 16, Kind::kSuperS8}, 8 * 210 / 16.0},
  };
  for (int bits = 2; bits <= 8; ++bits) {
    for (const int group : {32, 64, 128, 0}) {
      for (const Kind kind : {Kind::kF16, Kind::kBf16, Kind::kF32}) {
        const double codes = bits * (group == 0 ? double{kCols} : group);
        const int scale = 8 * ScaleBytes(kind);
        sources.push_back({"ct_int sym", {bits, group, kind}, codes + scale});
        sources.push_back(
            {"ct_int asym", {bits, group, kind, ScaleOffset::kZero}, codes + scale + bits});
      }
    }
  }
  for (const Source& source : sources) {
    const PackedSpec spec = IntSpec(kRows, kCols, source.form);
    const double source_bytes =
        kRows * kCols / static_cast<double>(spec.group_size) * source.bits_per_group / 8;
    const auto bytes = static_cast<double>(*PackedBytes(spec));
    EXPECT_GE(bytes, source_bytes) << source.name << " " << spec.Describe();
    EXPECT_LE(bytes, 1.05 * source_bytes) << source.name << " " << spec.Describe();
  }
  // Nothing is added where the source's numbers are kept one by one.
  EXPECT_EQ(*PackedBytes(Q4Spec(1536, 576)), 1536u * (576 / 32) * 20);
  EXPECT_EQ(*PackedBytes(Q8Spec(576, 1536)), 576u * (1536 / 32) * 34);
  EXPECT_EQ(*PackedBytes({.rows = 576, .cols = 1536, .type = PackedSpec::Type::kBf16}),
            576u * 1536 * 2);
  EXPECT_EQ(*PackedBytes(IntSpec(512, 2048, {2, 16, Kind::kSuperU4Min})), 512u * 8 * 84);
}

TEST(PackedMatrix, RefusesImpossibleSpecs) {
  const auto refused = [](const SpecForm& form, const auto& change) {
    PackedSpec spec = IntSpec(16, 64, form);
    EXPECT_TRUE(PackedBytes(spec).ok()) << spec.Describe();
    change(spec);
    return PackedBytes(spec).status().code() == absl::StatusCode::kInvalidArgument &&
           !PackedMatrixBuilder::Create(spec).ok();
  };
  const SpecForm plain, shared{.block_rows = 8}, super{.scale = ScaleKind::kSuperS8},
      zeros{.offset = ScaleOffset::kZero}, nested{.scale = ScaleKind::kNested};
  EXPECT_TRUE(refused(plain, [](PackedSpec& s) { s.bits = 9; }));
  EXPECT_TRUE(refused(plain, [](PackedSpec& s) { s.bits = 1; }));
  EXPECT_TRUE(refused(plain, [](PackedSpec& s) { s.zero_point = 16; }));
  EXPECT_TRUE(refused(plain, [](PackedSpec& s) { s.zero_point = -1; }));
  EXPECT_TRUE(refused(plain, [](PackedSpec& s) { s.group_size = 0; }));
  EXPECT_TRUE(refused(plain, [](PackedSpec& s) { s.first_group_offset = 32; }));
  EXPECT_TRUE(refused(plain, [](PackedSpec& s) { s.first_group_offset = -1; }));
  EXPECT_TRUE(refused(plain, [](PackedSpec& s) { s.rows = uint64_t{1} << 40; }));
  for (const ScaleKind kind : {ScaleKind::kF16, ScaleKind::kF32}) {  // too large, and beyond u64
    EXPECT_TRUE(refused(plain, [kind](PackedSpec& s) {
      s.rows = s.cols = uint64_t{1} << 31;
      s.group_size = 1, s.scale = kind;
    }));
  }
  EXPECT_TRUE(refused(plain, [](PackedSpec& s) { s.first_row_offset = 1; }));
  EXPECT_TRUE(refused(plain, [](PackedSpec& s) { s.block_rows = -1; }));
  EXPECT_TRUE(refused(zeros, [](PackedSpec& s) { s.zero_point = 8; }));
  EXPECT_TRUE(refused(shared, [](PackedSpec& s) { s.first_row_offset = 8; }));
  EXPECT_TRUE(refused(shared, [](PackedSpec& s) { s.block_rows = 0, s.first_row_offset = 1; }));
  EXPECT_TRUE(refused(shared, [](PackedSpec& s) { s.offset = ScaleOffset::kMin; }));
  EXPECT_TRUE(refused(shared, [](PackedSpec& s) { s.offset = ScaleOffset::kZero; }));
  EXPECT_TRUE(refused(shared, [](PackedSpec& s) { s.scale = ScaleKind::kSuperS8; }));
  EXPECT_TRUE(refused(shared, [](PackedSpec& s) { s.scale = ScaleKind::kNested; }));
  EXPECT_TRUE(refused(super, [](PackedSpec& s) { s.group_size = 48; }));
  EXPECT_TRUE(refused(super, [](PackedSpec& s) { s.group_size = 512; }));
  EXPECT_TRUE(refused(super, [](PackedSpec& s) { s.first_group_offset = 256; }));
  EXPECT_TRUE(refused(super, [](PackedSpec& s) { s.offset = ScaleOffset::kMin; }));
  EXPECT_TRUE(refused(super, [](PackedSpec& s) { s.offset = ScaleOffset::kZero; }));
  EXPECT_TRUE(refused(nested, [](PackedSpec& s) { s.source_row_groups = s.groups() - 1; }));
  EXPECT_TRUE(refused(nested, [](PackedSpec& s) { s.source_row_groups = uint64_t{1} << 40; }));
  EXPECT_TRUE(refused(nested, [](PackedSpec& s) { s.first_block = uint64_t{1} << 62; }));
  EXPECT_FALSE(
      PackedBytes(
          {.rows = uint64_t{1} << 31, .cols = uint64_t{1} << 31, .type = PackedSpec::Type::kF32})
          .ok());
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
