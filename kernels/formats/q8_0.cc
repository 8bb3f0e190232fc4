// q8_0 (GGUF): blocks of 32 values along K in 34 bytes: f16 scale d, 32 signed bytes; value = d *
// byte, exact in f32. The canonical codes are unsigned: byte + 128, zero point 128.
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/float_types.h"
#include "kernels/formats/block_scales.h"
#include "kernels/formats/format.h"

namespace bitshard {
namespace {

constexpr uint64_t kBlock = 32;
constexpr uint64_t kBlockBytes = 34;

class Q8_0 final : public WeightFormat {
 public:
  Q8_0() : WeightFormat("q8_0", kBlock, kBlockBytes) {}

  void Decode(absl::Span<const uint8_t> bytes, uint64_t rows, uint64_t cols,
              float* out) const override {
    const uint64_t blocks = rows * cols / kBlock;
    CHECK_EQ(bytes.size(), blocks * kBlockBytes);
    for (uint64_t b = 0; b < blocks; ++b) {
      const uint8_t* block = bytes.data() + b * kBlockBytes;
      const float scale = F16ToF32(LoadF16Bits(block));
      for (uint64_t i = 0; i < kBlock; ++i) {
        out[b * kBlock + i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
      }
    }
  }

  PackedSpec Canonical(uint64_t rows, const ColumnSlice& slice) const override {
    return {.rows = rows,
            .cols = slice.cols(),
            .type = PackedSpec::Type::kInt,
            .bits = 8,
            .zero_point = 128,
            .group_size = kBlock,
            .has_min = false,
            .first_group_offset = static_cast<int>(slice.begin - slice.read_begin)};
  }

  absl::Status ToCanonical(absl::Span<const uint8_t> bytes, uint64_t row_begin, uint64_t row_count,
                           const ColumnSlice& slice, PackedMatrixBuilder& builder) const override {
    const uint64_t blocks = slice.read_cols() / kBlock;
    CHECK_EQ(bytes.size(), row_count * blocks * kBlockBytes);
    std::vector<uint8_t> codes(slice.read_cols());
    std::vector<uint16_t> scales(blocks);
    for (uint64_t row = 0; row < row_count; ++row) {
      for (uint64_t b = 0; b < blocks; ++b) {
        const uint8_t* block = bytes.data() + (row * blocks + b) * kBlockBytes;
        scales[b] = LoadF16Bits(block);
        if (!IsFiniteF16(scales[b])) return NonFiniteScale(name(), row_begin + row, b);
        for (uint64_t i = 0; i < kBlock; ++i) codes[b * kBlock + i] = block[2 + i] ^ 0x80;
      }
      builder.SetIntRow(row_begin + row, codes.data() + (slice.begin - slice.read_begin),
                        scales.data());
    }
    return absl::OkStatus();
  }
};

const RegisterFormat kRegistered(new Q8_0);

}  // namespace
}  // namespace bitshard
