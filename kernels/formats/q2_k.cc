// q2_k (GGUF): blocks of 256 values along K in 84 bytes: 16 bytes of sub-scales, 64 bytes of 2-bit
// codes, f16 d, f16 dmin. Group g of 16 values has its scale in the low and its minimum in the high
// nibble of sub-scale byte g. Each half of 128 values has 32 bytes; byte l there holds elements l,
// l + 32, l + 64, l + 96 of the half, from its lowest bits on. value = d * scale * code - dmin *
// minimum, rounded to f32 once (the products are exact).
#include <cstring>

#include "kernels/formats/gguf_block.h"

namespace bitshard {
namespace {

class Q2_K final : public GgufBlock {
 public:
  Q2_K()
      : GgufBlock("q2_k", {.block = 256,
                           .block_bytes = 84,
                           .bits = 2,
                           .group_size = 16,
                           .scale = ScaleKind::kSuperU4Min,
                           .d_at = 80,
                           .min_at = 82}) {}

 private:
  void DecodeBlock(const uint8_t* block, float* out) const override {
    const float d = F16At(block + 80), dmin = F16At(block + 82);
    for (int i = 0; i < 256; ++i) {
      const int scale = block[i / 16] & 15, min = block[i / 16] >> 4;
      const int code = (block[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
      out[i] =
          d * static_cast<float>(scale) * static_cast<float>(code) - dmin * static_cast<float>(min);
    }
  }

  void Unpack(const uint8_t* block, const Numbers& out) const override {
    std::memcpy(out.scales, block, 16);
    for (int part = 0; part < 8; ++part) {
      SetBits(block + 16 + part / 4 * 32, 32, {.from = part % 4 * 2, .count = 2},
              out.codes + part * 32);
    }
  }
};

const RegisterFormat kRegistered(new Q2_K);

}  // namespace
}  // namespace bitshard
