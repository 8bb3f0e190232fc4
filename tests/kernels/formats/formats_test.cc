// The formats by their definitions: worked blocks, slices, and the canonical form, which holds the
// same values.
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

#include "kernels/formats/format.h"

namespace bitshard {
namespace {

std::vector<uint8_t> FromHex(const std::string& hex) {
  const std::string bytes = absl::HexStringToBytes(hex);
  return {bytes.begin(), bytes.end()};
}

const WeightFormat& Format(const std::string& name) {
  const WeightFormat* const format = FindFormat(name);
  EXPECT_NE(format, nullptr) << name;
  return *format;
}

std::vector<float> Decode(const WeightFormat& format, const std::vector<uint8_t>& bytes,
                          uint64_t rows, uint64_t cols) {
  std::vector<float> out(rows * cols);
  format.Decode(bytes, rows, cols, out.data());
  return out;
}

// Random bytes, but scales that a writer could have produced.
std::vector<uint8_t> RandomMatrix(const WeightFormat& format, uint64_t rows, uint64_t cols,
                                  uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint8_t> bytes(rows * *format.RowBytes(cols));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  const uint64_t step = format.block_elements() > 1 ? format.block_bytes() : 2;
  const bool two_scales = format.name() == "q4_1";
  for (uint64_t i = 0; i + 3 < bytes.size();
       i += step) {  // keep the top exponent bit of f16 (and f32) clear: finite
    bytes[i + 1] &= 0xbf;
    if (two_scales || format.name() == "f32") bytes[i + 3] &= 0xbf;
  }
  return bytes;
}

TEST(Formats, KnowsTheFormatsOfThisBuild) {
  std::vector<std::string> names;
  for (const WeightFormat* format : AllFormats()) names.push_back(format->name());
  EXPECT_EQ(names, (std::vector<std::string>{"bf16", "f16", "f32", "q4_1", "q8_0"}));
}

TEST(Formats, AnUnknownNameIsRefusedWithTheListOfKnownOnes) {
  const absl::Status status = GetFormat("q4_k").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(),
            "weight format 'q4_k' is not supported; supported are bf16, f16, f32, q4_1, q8_0");
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

// Every format, odd sizes, slices inside blocks, packed in runs of rows: the canonical form has the
// decoded values, all bits.
TEST(Formats, TheCanonicalFormHoldsTheDecodedValues) {
  constexpr uint32_t kSeed = 20240;
  for (const WeightFormat* format : AllFormats()) {
    for (const uint64_t rows : {1, 16, 37}) {
      constexpr uint64_t kCols = 192;
      const std::vector<uint8_t> whole = RandomMatrix(*format, rows, kCols, kSeed + rows);
      const std::vector<float> values = Decode(*format, whole, rows, kCols);
      for (const auto& [begin, end] : std::vector<std::pair<uint64_t, uint64_t>>{
               {0, 192}, {0, 64}, {64, 192}, {48, 96}, {33, 34}, {1, 191}, {40, 56}}) {
        const ColumnSlice slice = format->ReadColumns(begin, end);
        const uint64_t row_bytes = *format->RowBytes(kCols),
                       read_bytes = *format->RowBytes(slice.read_cols());
        std::vector<uint8_t> read;
        for (uint64_t row = 0; row < rows; ++row) {
          const uint8_t* const first =
              whole.data() + row * row_bytes + *format->RowBytes(slice.read_begin);
          read.insert(read.end(), first, first + read_bytes);
        }
        PackedMatrixBuilder builder(format->Canonical(rows, slice));
        for (uint64_t row = 0; row < rows; row += kTileRows) {
          const uint64_t count = std::min<uint64_t>(kTileRows, rows - row);
          ASSERT_TRUE(
              format
                  ->ToCanonical(absl::MakeSpan(read).subspan(row * read_bytes, count * read_bytes),
                                row, count, slice, builder)
                  .ok());
        }
        const PackedMatrix matrix = std::move(builder).Build();
        std::vector<float> packed(slice.cols());
        for (uint64_t row = 0; row < rows; ++row) {
          matrix.RowToF32(static_cast<int64_t>(row), packed.data());
          ASSERT_EQ(std::memcmp(packed.data(), values.data() + row * kCols + begin,
                                packed.size() * sizeof(float)),
                    0)
              << format->name() << " row " << row << " of " << rows << ", columns " << begin
              << " to " << end;
        }
      }
    }
  }
}

TEST(Formats, AScaleThatIsNotFiniteIsDataLoss) {
  for (const std::string name : {"q4_1", "q8_0"}) {
    const WeightFormat& format = Format(name);
    std::vector<uint8_t> bytes = RandomMatrix(format, 2, 64, 1);
    bytes[3 * format.block_bytes() + 1] = 0x7c;  // row 1, block 1: an infinity or NaN
    const ColumnSlice slice = format.ReadColumns(0, 64);
    PackedMatrixBuilder builder(format.Canonical(2, slice));
    const absl::Status status = format.ToCanonical(bytes, 0, 2, slice, builder);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(status.message(),
              name + ": the scale of row 1, block 1 is not finite; the file is damaged");
  }
}

}  // namespace
}  // namespace bitshard
