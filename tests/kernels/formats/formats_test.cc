// The formats by their definitions: worked blocks, slices, and the canonical form, which holds the
// same values.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"

#include "kernels/formats/format.h"
#include "tests/kernels/formats/random_blocks.h"

namespace bitshard {
namespace {

std::vector<uint8_t> FromHex(const std::string& hex) {
  const std::string bytes = absl::HexStringToBytes(hex);
  return {bytes.begin(), bytes.end()};
}

const BlockFormat& Format(const std::string& name) {
  const BlockFormat* const format = FindBlockFormat(name);
  EXPECT_NE(format, nullptr) << name;
  return *format;
}

std::vector<float> Decode(const BlockFormat& format, const std::vector<uint8_t>& bytes,
                          uint64_t rows, uint64_t cols) {
  std::vector<float> out(rows * cols);
  format.Decode(bytes, rows, cols, out.data());
  return out;
}

TEST(Formats, KnowsTheFormatsOfThisBuild) {
  std::vector<std::string> names;
  for (const WeightFormat* format : AllFormats()) names.push_back(format->name());
  EXPECT_EQ(names, (std::vector<std::string>{"bf16", "f16", "f32", "q2_k", "q3_k", "q4_0", "q4_1",
                                             "q4_k", "q5_0", "q5_1", "q5_k", "q6_k", "q8_0"}));
}

TEST(Formats, AnUnknownNameIsRefusedWithTheListOfKnownOnes) {
  const absl::Status status = GetFormat("iq2_xs").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(absl::StartsWith(
      status.message(), "weight format 'iq2_xs' is not supported; supported are bf16, f16, f32, "))
      << status;
  const std::vector<std::string> quoted = absl::StrSplit(status.message(), '"');
  ASSERT_EQ(quoted.size(), 5u) << status;  // two examples
  EXPECT_TRUE(absl::StrContains(quoted[0], ", ct_int2..8 (compressed-tensors)")) << status;
  for (const std::string& example : {quoted[1], quoted[3]})
    EXPECT_NE(FindFormat(example), nullptr) << example;
}

TEST(Formats, Q4_1DecodesTheWorkedBlock) {
  const auto values =
      Decode(Format("q4_1"), FromHex("223800c480809191a2a2b3b3c4c4d5d5e6e6f7f7"), 1, 32);
  const float scale = 0x1.088p-1f;  // f16 0x3822
  for (int i = 0; i < 32; ++i) {
    const int code = i / 2;  // codes rise by one every two values
    EXPECT_EQ(values[i], std::fma(static_cast<float>(code), scale, -4.0f)) << i;
  }
}

TEST(Formats, Q8_0DecodesTheWorkedBlock) {
  const auto values = Decode(
      Format("q8_0"),
      FromHex("082881899199a1a9b1b9c0c8d0d8e0e8f0f8000810182028303840474f575f676f77"), 1, 32);
  const float scale = 0x1.02p-5f;  // f16 0x2808
  EXPECT_EQ(values[0], -127 * scale);
  EXPECT_EQ(values[16], 0.0f);
  EXPECT_EQ(values[31], 0x77 * scale);
}

TEST(Formats, DenseFormatsDecodeTheirBits) {
  EXPECT_EQ(Decode(Format("f32"), FromHex("0000803f000000c0"), 1, 2), (std::vector<float>{1, -2}));
  EXPECT_EQ(Decode(Format("f16"), FromHex("003c00c0"), 2, 1), (std::vector<float>{1, -2}));
  EXPECT_EQ(Decode(Format("bf16"), FromHex("803f00c0"), 1, 2), (std::vector<float>{1, -2}));
}

TEST(Formats, RowBytesRefusesPartsOfBlocksAndOverflow) {
  EXPECT_EQ(Format("q4_1").RowBytes(64), 40);
  EXPECT_EQ(Format("q4_1").RowBytes(63), std::nullopt);
  EXPECT_EQ(Format("f32").RowBytes(uint64_t{1} << 62), std::nullopt);
  EXPECT_EQ(Format("bf16").RowBytes(3), 6);
}

TEST(Formats, ASliceIsWidenedToWholeBlocksAndAnEmptyOneReadsNothing) {
  const ColumnSlice inside = Format("q8_0").ReadColumns(48, 96);
  EXPECT_EQ(inside.read_begin, 32);
  EXPECT_EQ(inside.read_end, 96);
  EXPECT_EQ(inside.cols(), 48);
  EXPECT_EQ(Format("q8_0").ReadColumns(48, 48).read_cols(), 0);
  EXPECT_EQ(Format("bf16").ReadColumns(3, 5).read_cols(), 2);
}

// Packs a slice of a whole weight as the loader does: of each part the bytes of the slice, in runs
// of 16 rows.
PackedMatrix PackSlice(const BlockFormat& format, const std::vector<uint8_t>& whole, uint64_t cols,
                       const MatrixSlice& slice) {
  const uint64_t row_bytes = *format.RowBytes(cols);
  PackedMatrixBuilder builder(format.Canonical(cols, slice));
  for (uint64_t row = slice.row_begin; row < slice.row_end; row += kTileRows) {
    MatrixSlice run = slice;
    run.row_begin = row;
    run.row_end = std::min<uint64_t>(row + kTileRows, slice.row_end);
    const PartSlice part = format.SliceOfPart(0, cols, run);
    std::vector<uint8_t> read;
    for (uint64_t r = part.row_begin; r < part.row_end; ++r) {
      const uint8_t* const stored = whole.data() + r * row_bytes;
      read.insert(read.end(), stored + part.byte_begin, stored + part.byte_end);
    }
    const absl::Span<const uint8_t> bytes(read);
    const absl::Status status = static_cast<const WeightFormat&>(format).ToCanonical(
        {&bytes, 1}, cols, run, row - slice.row_begin, builder);
    EXPECT_TRUE(status.ok()) << status;
  }
  return std::move(builder).Build();
}

void ExpectSliceHolds(const BlockFormat& format, const std::vector<uint8_t>& whole,
                      const std::vector<float>& values, uint64_t cols, const MatrixSlice& slice) {
  const PackedMatrix matrix = PackSlice(format, whole, cols, slice);
  std::vector<float> packed(slice.cols() + 1);  // an empty slice is compared too
  for (uint64_t row = slice.row_begin; row < slice.row_end; ++row) {
    matrix.RowToF32(static_cast<int64_t>(row - slice.row_begin), packed.data());
    ASSERT_EQ(std::memcmp(packed.data(), values.data() + row * cols + slice.col_begin,
                          slice.cols() * sizeof(float)),
              0)
        << format.name() << " row " << row << " of " << slice.row_begin << " to " << slice.row_end
        << ", columns " << slice.col_begin << " to " << slice.col_end;
  }
}

std::vector<const BlockFormat*> BlockFormats() {
  std::vector<const BlockFormat*> all;
  for (const WeightFormat* format : AllFormats()) {
    all.push_back(dynamic_cast<const BlockFormat*>(format));
    EXPECT_NE(all.back(), nullptr) << format->name();
  }
  return all;
}

// The canonical form has the decoded values, all bits: every format, every cut at a multiple of 16,
// those inside blocks and super-blocks too, and some that kernels would not take.
TEST(Formats, ASliceOfColumnsHoldsTheDecodedValues) {
  constexpr uint64_t kRows = 3, kCols = 768;
  for (const BlockFormat* format : BlockFormats()) {
    const std::vector<uint8_t> whole = RandomBlocks(*format, kRows, kCols, 20240);
    const std::vector<float> values = Decode(*format, whole, kRows, kCols);
    for (uint64_t begin = 0; begin < kCols; begin += 16) {
      for (uint64_t end = begin + 16; end <= kCols; end += 16)
        ExpectSliceHolds(*format, whole, values, kCols, {0, kRows, begin, end});
    }
    for (const auto& [begin, end] : std::vector<std::pair<uint64_t, uint64_t>>{
             {33, 34}, {1, 767}, {40, 56}, {255, 257}, {100, 100}}) {
      ExpectSliceHolds(*format, whole, values, kCols, {0, kRows, begin, end});
    }
  }
}

TEST(Formats, ASliceOfRowsHoldsTheDecodedValues) {
  constexpr uint64_t kRows = 37, kCols = 512;
  for (const BlockFormat* format : BlockFormats()) {
    const std::vector<uint8_t> whole = RandomBlocks(*format, kRows, kCols, 20241);
    const std::vector<float> values = Decode(*format, whole, kRows, kCols);
    for (uint64_t begin = 0; begin < kRows; begin += 5) {
      for (uint64_t end = begin; end <= kRows; ++end)
        ExpectSliceHolds(*format, whole, values, kCols, {begin, end, 208, 496});
    }
  }
}

// Promise 1 of the design, where nothing is padded.
TEST(Formats, TheCanonicalFormTakesAtMostFivePercentMoreThanTheFile) {
  constexpr uint64_t kRows = 512, kCols = 2048;
  for (const BlockFormat* format : BlockFormats()) {
    const uint64_t stored = *StoredBytes(*format, kRows, kCols);
    const uint64_t packed = *PackedBytes(
        static_cast<const WeightFormat*>(format)->Canonical(kCols, {0, kRows, 0, kCols}));
    EXPECT_GE(packed, stored) << format->name();
    EXPECT_LE(packed * 20, stored * 21) << format->name();
  }
}

TEST(Formats, AScaleThatIsNotFiniteIsDataLoss) {
  for (const BlockFormat* format : BlockFormats()) {
    if (format->block_elements() == 1) continue;
    const std::vector<uint64_t>& tops = TopBytesOfFloats(format->name());
    for (size_t i = 0; i < tops.size(); ++i) {
      // Row 4, block 2 of the weight: an infinity or NaN. The slice begins inside block 1.
      const uint64_t block = format->block_elements(), cols = 3 * block;
      std::vector<uint8_t> bytes = RandomBlocks(*format, 1, 2 * block, 1);
      bytes[format->block_bytes() + tops[i]] |= 0x7c;
      const ColumnSlice slice = format->ReadColumns(block + 16, cols);
      PackedMatrixBuilder builder(format->Canonical(5, slice));
      const absl::Status status = format->ToCanonical(bytes, 4, 1, slice, builder);
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << format->name();
      EXPECT_EQ(status.message(), format->name() + ": the " + (i == 0 ? "scale" : "minimum") +
                                      " of row 4, block 2 is not finite; the file is damaged");
    }
  }
}

}  // namespace
}  // namespace bitshard
