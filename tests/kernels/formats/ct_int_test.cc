// ct_int: the words that compressed-tensors writes (0.20.1 dense, 0.17.1 padded), names, slices,
// and the canonical form, which holds the same values.
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "kernels/formats/format.h"
#include "tests/kernels/formats/random_ct.h"

namespace bitshard {
namespace {

using Words = std::vector<uint32_t>;

const WeightFormat& Format(const std::string& name) {
  const WeightFormat* const format = FindFormat(name);
  EXPECT_NE(format, nullptr) << name;
  return *format;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::vector<absl::Span<const uint8_t>> Spans(const std::vector<std::string>& parts) {
  std::vector<absl::Span<const uint8_t>> spans;
  for (const std::string& part : parts)
    spans.push_back({reinterpret_cast<const uint8_t*>(part.data()), part.size()});
  return spans;
}

std::vector<float> Decode(const std::string& name, const std::vector<std::string>& parts,
                          uint64_t rows, uint64_t cols) {
  const WeightFormat& format = Format(name);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto shape = format.ShapeOfPart(i, rows, cols);
    EXPECT_TRUE(shape.ok()) << shape.status();
    EXPECT_EQ(shape->rows * shape->row_bytes, parts[i].size()) << name << " part " << i;
  }
  std::vector<float> out(rows * cols);
  format.Decode(Spans(parts), rows, cols, out.data());
  return out;
}

absl::StatusOr<PackedMatrix> Pack(const std::string& name, const std::vector<std::string>& parts,
                                  uint64_t rows, uint64_t cols) {
  const WeightFormat& format = Format(name);
  const MatrixSlice whole{0, rows, 0, cols};
  PackedMatrixBuilder builder(format.Canonical(cols, whole));
  const absl::Status status = format.ToCanonical(Spans(parts), cols, whole, 0, builder);
  if (!status.ok()) return status;
  return std::move(builder).Build();
}

// u_i = (5 i + 3) mod 2^b, as the check vectors have it.
int Code(int i, int bits) { return (5 * i + 3) % (1 << bits); }

struct Vector {
  int bits;
  int codes;
  bool dense;
  Words words;
};

// clang-format off
const Vector kVectors[] = {
    {2, 13, true, {0x03939393}},
    {3, 13, true, {0x43C67543, 0x00000075}},
    {3, 13, false, {0x03C67543, 0x000001D5}},
    {4, 13, true, {0x61C72D83, 0x000FA50B}},
    {5, 13, true, {0x79793503, 0xFD560B30, 0x00000001}},
    {5, 13, false, {0x39793503, 0x35582CC1, 0x0000001F}},
    {6, 13, true, {0x1748D203, 0x5C2B9A17, 0x00003FEB}},
    {6, 13, false, {0x1748D203, 0x30AE685C, 0x0003FEB5}},
    {7, 13, true, {0x72434403, 0x2B4C84E1, 0x03F74D58}},
    {7, 13, false, {0x02434403, 0x04C84E17, 0x074D582B, 0x0000003F}},
    {8, 13, true, {0x120D0803, 0x26211C17, 0x3A35302B, 0x0000003F}},
    {2, 32, true, {0x93939393, 0x93939393}},
    {3, 32, true, {0x43C67543, 0x7543C675, 0xC67543C6}},
    {4, 32, true, {0x61C72D83, 0xE94FA50B, 0x61C72D83, 0xE94FA50B}},
    {5, 32, true, {0x79793503, 0xFD560B30, 0x77137249, 0x1BB45871, 0xF668F514}},
    {6, 32, true, {0x1748D203, 0x5C2B9A17, 0x38913FEB, 0x2789D613, 0x503BDB1B, 0x79950F28}},
    {7, 32, true, {0x72434403, 0x2B4C84E1, 0x23F74D58, 0x6C539D26, 0xC7667C57, 0x41407BED, 0x3C64A0F1}},
    {8, 32, true, {0x120D0803, 0x26211C17, 0x3A35302B, 0x4E49443F, 0x625D5853, 0x76716C67, 0x8A85807B, 0x9E99948F}},
};
// clang-format on

std::string PackingWord(int bits, bool dense) {
  return 32 % bits == 0 ? "" : dense ? " dense" : " padded";
}

TEST(CtInt, DecodesTheWordsOfTheWriters) {
  for (const Vector& v : kVectors) {
    const std::string name =
        absl::StrCat("ct_int", v.bits, " channel scale=f32 sym", PackingWord(v.bits, v.dense));
    const auto values = Decode(name, {Bytes(v.words), Bytes<float>({0.5f})}, 1, v.codes);
    for (int i = 0; i < v.codes; ++i) {
      EXPECT_EQ(values[i], 0.5f * static_cast<float>(Code(i, v.bits) - (1 << (v.bits - 1))))
          << name << " code " << i;
    }
  }
}

// Zero points lie along the rows: the same words as columns, one group.
TEST(CtInt, ZeroPointsArePackedAlongTheRows) {
  for (const Vector& v : kVectors) {
    const std::string name =
        absl::StrCat("ct_int", v.bits, " channel scale=f32 asym", PackingWord(v.bits, v.dense));
    const uint64_t rows = v.codes;
    // All codes 0: one column of one word a row.
    const auto values = Decode(
        name, {Bytes(Words(rows, 0)), Bytes(std::vector<float>(rows, 1)), Bytes(v.words)}, rows, 1);
    for (int i = 0; i < v.codes; ++i)
      EXPECT_EQ(values[i], static_cast<float>(-Code(i, v.bits))) << name << " row " << i;
  }
}

TEST(CtInt, ZeroPointExamples) {
  // z = [[-8,-7],[-1,0],[3,7],[1,2],[5,-3]], 4 bits; codes of one column a group: all 8, that is 0.
  const auto four = Decode("ct_int4 group=1 scale=f32 asym",
                           {Bytes(Words(5, 0x88)), Bytes(std::vector<float>(10, 1)),
                            Bytes(Words{0x000D9B70, 0x0005AF81})},
                           5, 2);
  EXPECT_EQ(four, (std::vector<float>{8, 7, 1, 0, -3, -7, -1, -2, -5, 3}));
  // z = -4..3 and again, 3 bits, 12 rows, one group.
  const auto three = Decode(
      "ct_int3 channel scale=f32 asym dense",
      {Bytes(Words(12, 4)), Bytes(std::vector<float>(12, 1)), Bytes(Words{0x88FAC688, 0x00000006})},
      12, 1);
  EXPECT_EQ(three, (std::vector<float>{4, 3, 2, 1, 0, -1, -2, -3, 4, 3, 2, 1}));
}

TEST(CtInt, WholeModuleExample) {
  // 5 bits, groups of 4, scale 0.25 everywhere (bf16 0x3E80), zero points -16 and 15.
  const auto values = Decode("ct_int5 group=4 scale=bf16 asym dense",
                             {Bytes(Words{0xEFB10420, 0x0000007C}),
                              Bytes(std::vector<uint16_t>{0x3E80, 0x3E80}), Bytes(Words{0, 31})},
                             1, 8);
  EXPECT_EQ(values, (std::vector<float>{0, 0.25, 0.25, 0.5, -1, -2, -3, -4}));
}

TEST(CtInt, EachFormatHasOneName) {
  for (const char* good :
       {"ct_int2 group=32 scale=bf16 sym", "ct_int8 channel scale=f32 asym",
        "ct_int3 group=128 scale=f16 sym stray=packed padded",
        "ct_int4 channel scale=bf16 sym stray=1", "ct_int7 channel scale=bf16 sym stray=8 dense"}) {
    ASSERT_NE(FindFormat(good), nullptr) << good;
    EXPECT_EQ(FindFormat(good)->name(), good);
    EXPECT_EQ(FindFormat(good), FindFormat(good));  // made once
  }
  for (const char* bad :
       {"ct_int", "ct_int4", "ct_int1 channel scale=bf16 sym", "ct_int9 channel scale=bf16 sym",
        "ct_int4 channel scale=bf16 sym dense",  // 4 bits have one packing
        "ct_int5 channel scale=bf16 sym",        // 5 bits have two
        "ct_int4 scale=bf16 channel sym",        // order
        "ct_int4 group=0 scale=bf16 sym", "ct_int4 group=-1 scale=bf16 sym",
        "ct_int4 group=4294967328 scale=bf16 sym", "ct_int4 group=032 scale=bf16 sym",
        "ct_int4 channel scale=f64 sym", "ct_int4 channel scale=bf16 sym stray=9",
        "ct_int4 channel scale=bf16 asym stray=1", "ct_int4 channel  scale=bf16 sym",
        "ct_int44channel scale=bf16 sym", "ct_int4 channel scale=bf16 sym "}) {
    EXPECT_EQ(FindFormat(bad), nullptr) << bad;
  }
  EXPECT_TRUE(absl::StrContains(GetFormat("ct_int9").status().message(), "ct_int2..8"));
}

TEST(CtInt, PartsAreWhatTheWriterStores) {
  const WeightFormat& dense = Format("ct_int5 group=32 scale=bf16 asym dense");
  EXPECT_EQ(dense.part_count(), 3);
  EXPECT_EQ(*dense.ShapeOfPart(0, 70, 64), (PartShape{70, 10 * 4}));
  EXPECT_EQ(*dense.ShapeOfPart(1, 70, 64), (PartShape{70, 2 * 2}));
  EXPECT_EQ(*dense.ShapeOfPart(2, 70, 64), (PartShape{11, 2 * 4}));
  const WeightFormat& padded = Format("ct_int5 group=32 scale=f32 asym padded");
  EXPECT_EQ(*padded.ShapeOfPart(0, 70, 64), (PartShape{70, 11 * 4}));
  EXPECT_EQ(*padded.ShapeOfPart(2, 70, 64), (PartShape{12, 2 * 4}));
  // A cut inside a word (columns), inside a group, inside a zero word (rows).
  const MatrixSlice slice{.row_begin = 7, .row_end = 13, .col_begin = 20, .col_end = 40};
  EXPECT_EQ(dense.SliceOfPart(0, 64, slice), (PartSlice{7, 13, 3 * 4, 7 * 4}));
  EXPECT_EQ(dense.SliceOfPart(1, 64, slice), (PartSlice{7, 13, 0, 2 * 2}));
  EXPECT_EQ(dense.SliceOfPart(2, 64, slice), (PartSlice{1, 3, 0, 2 * 4}));
  EXPECT_EQ(padded.SliceOfPart(0, 64, slice), (PartSlice{7, 13, 3 * 4, 7 * 4}));
  EXPECT_EQ(padded.SliceOfPart(2, 64, slice), (PartSlice{1, 3, 0, 2 * 4}));
  EXPECT_EQ(dense.SliceOfPart(0, 64, {5, 5, 0, 64}).bytes(), 0);
  EXPECT_EQ(dense.SliceOfPart(2, 64, {0, 70, 9, 9}).bytes(), 0);
  EXPECT_FALSE(dense.ShapeOfPart(0, 70, 65).ok());  // no whole groups
  EXPECT_FALSE(dense.ShapeOfPart(0, uint64_t{1} << 40, 64).ok());
}

std::string Cut(const std::string& part, uint64_t row_bytes, const PartSlice& slice) {
  std::string bytes;
  for (uint64_t row = slice.row_begin; row < slice.row_end; ++row)
    bytes += part.substr(row * row_bytes + slice.byte_begin, slice.row_bytes());
  return bytes;
}

// Every width, packing, kind of group and scale; slices inside words, groups and zero words; rows
// packed in runs, as a loader does. The canonical form has the decoded values, all bits.
TEST(CtInt, TheCanonicalFormOfASliceHoldsTheDecodedValues) {
  constexpr uint64_t kSeed = 20241;
  std::mt19937_64 random(kSeed);
  int checked = 0;
  for (int bits = 2; bits <= 8; ++bits) {
    for (const std::string zeros : {" sym", " asym"}) {
      for (const std::string group : {" group=32", " group=12", " channel"}) {
        for (const bool dense : {true, false}) {
          if (!dense && 32 % bits == 0) continue;
          const char* const scales[] = {" scale=bf16", " scale=f16", " scale=f32"};
          const std::string name = absl::StrCat("ct_int", bits, group, scales[checked++ % 3], zeros,
                                                PackingWord(bits, dense));
          const WeightFormat& format = Format(name);
          constexpr uint64_t kRows = 53, kCols = 192;
          const auto parts = RandomCtParts(name, kRows, kCols, random, 1);
          const std::vector<float> values = Decode(name, parts, kRows, kCols);
          for (const MatrixSlice& slice : {MatrixSlice{0, kRows, 0, kCols},
                                           {0, kRows, 64, 192},
                                           {7, 41, 0, kCols},
                                           {16, 53, 33, 35},
                                           {3, 20, 1, 191},
                                           {52, 53, 100, 101},
                                           {31, 33, 40, 56}}) {
            PackedMatrixBuilder builder(format.Canonical(kCols, slice));
            for (uint64_t row = slice.row_begin; row < slice.row_end; row += kTileRows) {
              MatrixSlice strip = slice;
              strip.row_begin = row;
              strip.row_end = std::min<uint64_t>(row + kTileRows, slice.row_end);
              std::vector<std::string> cut;
              for (size_t i = 0; i < parts.size(); ++i) {
                cut.push_back(Cut(parts[i], format.ShapeOfPart(i, kRows, kCols)->row_bytes,
                                  format.SliceOfPart(i, kCols, strip)));
              }
              const absl::Status status =
                  format.ToCanonical(Spans(cut), kCols, strip, row - slice.row_begin, builder);
              ASSERT_TRUE(status.ok()) << status;
            }
            const PackedMatrix matrix = std::move(builder).Build();
            std::vector<float> packed(slice.cols());
            for (uint64_t row = 0; row < slice.rows(); ++row) {
              matrix.RowToF32(static_cast<int64_t>(row), packed.data());
              ASSERT_EQ(
                  std::memcmp(packed.data(),
                              values.data() + (slice.row_begin + row) * kCols + slice.col_begin,
                              packed.size() * sizeof(float)),
                  0)
                  << name << " row " << row << " of rows from " << slice.row_begin
                  << ", columns from " << slice.col_begin << ", seed " << kSeed;
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(checked, (7 + 4) * 6);
}

TEST(CtInt, PaddingBitsAreIgnored) {
  const std::string name = "ct_int5 channel scale=f32 asym padded";
  const std::string scale = Bytes<float>({1});
  const auto clean = Decode(name, {Bytes(Words{0x01083105, 1}), scale, Bytes(Words{3})}, 1, 7);
  const auto dirty =
      Decode(name, {Bytes(Words{0xC1083105, 0xFFFFFFE1}), scale, Bytes(Words{0xFFFFFFE3})}, 1, 7);
  EXPECT_EQ(clean, dirty);
}

TEST(CtInt, ScalesMustBeFiniteAndNotNegative) {
  const auto status = [](const std::string& scale, const char* name) {
    return Pack(name, {Bytes(Words{0x88888888}), scale}, 1, 8).status();
  };
  const char* const f32 = "ct_int4 channel scale=f32 sym";
  EXPECT_TRUE(status(Bytes<float>({0.0f}), f32).ok());
  EXPECT_TRUE(status(Bytes<float>({1e-40f}), f32).ok());
  for (const float bad :
       {-1.0f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const absl::Status refused = status(Bytes<float>({bad}), f32);
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss) << bad;
    EXPECT_TRUE(absl::StrContains(refused.message(), "the scale of row 0, group 0 is")) << refused;
  }
  for (const uint16_t bad : {0x7f80, 0x7fc0, 0xbf80}) {
    EXPECT_FALSE(status(Bytes<uint16_t>({bad}), "ct_int4 channel scale=bf16 sym").ok()) << bad;
  }
  for (const uint16_t bad : {0x7c00, 0x7e00, 0xbc00}) {
    EXPECT_FALSE(status(Bytes<uint16_t>({bad}), "ct_int4 channel scale=f16 sym").ok()) << bad;
  }
}

TEST(CtInt, StrayZeroPointsMustSayZero) {
  const std::vector<std::string> two = {Bytes(Words{0x12345678, 0x9ABCDEF0}),
                                        Bytes(std::vector<float>{0.5f, 0.25f})};
  const auto with = [&two](std::string zeros) {
    std::vector<std::string> parts = two;
    parts.push_back(std::move(zeros));
    return parts;
  };
  const auto plain = Decode("ct_int4 channel scale=f32 sym", two, 2, 8);
  EXPECT_EQ(Decode("ct_int4 channel scale=f32 sym stray=1", with(std::string(2, '\0')), 2, 8),
            plain);
  const char* const bytes = "ct_int4 channel scale=f32 sym stray=2";
  EXPECT_TRUE(Pack(bytes, with(std::string(4, '\0')), 2, 8).ok());
  const absl::Status refused = Pack(bytes, with(std::string("\0\0\0\1", 4)), 2, 8).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StrContains(refused.message(), "declared symmetric, but row 1, group 0"))
      << refused;
  const char* const packed = "ct_int4 channel scale=f32 sym stray=packed";
  EXPECT_TRUE(Pack(packed, with(Bytes(Words{0x88})), 2, 8).ok());
  EXPECT_FALSE(Pack(packed, with(Bytes(Words{0x78})), 2, 8).ok());
}

}  // namespace
}  // namespace bitshard
