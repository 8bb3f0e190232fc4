// q4_k (GGUF): blocks of 256 values along K in 144 bytes: f16 d, f16 dmin, 12 bytes with 8 scales
// and 8 minima of 6 bits (KScale, KMin), 128 bytes of 4-bit codes. Each quarter of 64 values has 32
// bytes: elements 0..31 are the low, elements 32..63 the high nibbles. Groups have 32 values.
// value = d * scale * code - dmin * minimum, rounded to f32 once (the products are exact).
#include "kernels/formats/gguf_block.h"

namespace bitshard {
namespace {

class Q4_K final : public GgufBlock {
 public:
  Q4_K()
      : GgufBlock("q4_k", {.block = 256,
                           .block_bytes = 144,
                           .bits = 4,
                           .scale = ScaleKind::kSuperU8Min,
                           .d_at = 0,
                           .min_at = 2}) {}

 private:
  void DecodeBlock(const uint8_t* block, float* out) const override {
    const float d = F16At(block), dmin = F16At(block + 2);
    for (int i = 0; i < 256; ++i) {
      const int scale = KScale(block + 4, i / 32), min = KMin(block + 4, i / 32);
      const int code = (block[16 + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4)) & 15;
      out[i] =
          d * static_cast<float>(scale) * static_cast<float>(code) - dmin * static_cast<float>(min);
    }
  }

  void Unpack(const uint8_t* block, const Numbers& out) const override {
    for (int g = 0; g < 8; ++g) {
      out.scales[g] = static_cast<uint8_t>(KScale(block + 4, g));
      out.sub_mins[g] = static_cast<uint8_t>(KMin(block + 4, g));
      SetBits(block + 16 + g / 2 * 32, 32, {.from = g % 2 * 4, .count = 4}, out.codes + g * 32);
    }
  }
};

const RegisterFormat kRegistered(new Q4_K);

}  // namespace
}  // namespace bitshard
