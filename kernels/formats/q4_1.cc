// q4_1 (GGUF): blocks of 32 values along K in 20 bytes: f16 scale d, f16 minimum m, 16 bytes of
// codes. Byte j holds code j in its low nibble and code j + 16 in its high one; value = d * code +
// m, rounded once.
#include <cmath>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/float_types.h"
#include "kernels/formats/block_scales.h"
#include "kernels/formats/format.h"

namespace bitshard {
namespace {

constexpr uint64_t kBlock = 32;
constexpr uint64_t kBlockBytes = 20;

uint8_t CodeAt(const uint8_t* block, uint64_t i) {
  return i < 16 ? block[4 + i] & 15 : block[4 + i - 16] >> 4;
}

class Q4_1 final : public WeightFormat {
 public:
  Q4_1() : WeightFormat("q4_1", kBlock, kBlockBytes) {}

  void Decode(absl::Span<const uint8_t> bytes, uint64_t rows, uint64_t cols,
              float* out) const override {
    const uint64_t blocks = rows * cols / kBlock;
    CHECK_EQ(bytes.size(), blocks * kBlockBytes);
    for (uint64_t b = 0; b < blocks; ++b) {
      const uint8_t* block = bytes.data() + b * kBlockBytes;
      const float scale = F16ToF32(LoadF16Bits(block)), min = F16ToF32(LoadF16Bits(block + 2));
      for (uint64_t i = 0; i < kBlock; ++i)
        out[b * kBlock + i] = std::fma(static_cast<float>(CodeAt(block, i)), scale, min);
    }
  }

  PackedSpec Canonical(uint64_t rows, const ColumnSlice& slice) const override {
    return {.rows = rows,
            .cols = slice.cols(),
            .type = PackedSpec::Type::kInt,
            .bits = 4,
            .zero_point = 0,
            .group_size = kBlock,
            .has_min = true,
            .first_group_offset = static_cast<int>(slice.begin - slice.read_begin)};
  }

  absl::Status ToCanonical(absl::Span<const uint8_t> bytes, uint64_t row_begin, uint64_t row_count,
                           const ColumnSlice& slice, PackedMatrixBuilder& builder) const override {
    const uint64_t blocks = slice.read_cols() / kBlock;
    CHECK_EQ(bytes.size(), row_count * blocks * kBlockBytes);
    std::vector<uint8_t> codes(slice.read_cols());
    std::vector<uint16_t> scales(blocks), mins(blocks);
    for (uint64_t row = 0; row < row_count; ++row) {
      for (uint64_t b = 0; b < blocks; ++b) {
        const uint8_t* block = bytes.data() + (row * blocks + b) * kBlockBytes;
        scales[b] = LoadF16Bits(block);
        mins[b] = LoadF16Bits(block + 2);
        if (!IsFiniteF16(scales[b]) || !IsFiniteF16(mins[b]))
          return NonFiniteScale(name(), row_begin + row, b);
        for (uint64_t i = 0; i < kBlock; ++i) codes[b * kBlock + i] = CodeAt(block, i);
      }
      const uint8_t* first = codes.data() + (slice.begin - slice.read_begin);
      builder.SetIntRow(row_begin + row, first, scales.data(), mins.data());
    }
    return absl::OkStatus();
  }
};

const RegisterFormat kRegistered(new Q4_1);

}  // namespace
}  // namespace bitshard
