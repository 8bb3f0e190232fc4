// q5_k (GGUF): blocks of 256 values along K in 176 bytes: f16 d, f16 dmin, 12 bytes of scales and
// minima as in q4_k, 32 bytes of fifth bits, 128 bytes with the low four bits as in q4_k. Bit i /
// 32 of byte i % 32 is the fifth bit of element i. Groups have 32 values. value = d * scale * code
// - dmin * minimum, rounded to f32 once (the products are exact).
#include "kernels/formats/gguf_block.h"

namespace bitshard {
namespace {

class Q5_K final : public GgufBlock {
 public:
  Q5_K()
      : GgufBlock("q5_k", {.block = 256,
                           .block_bytes = 176,
                           .bits = 5,
                           .scale = ScaleKind::kSuperU8Min,
                           .d_at = 0,
                           .min_at = 2}) {}

 private:
  void DecodeBlock(const uint8_t* block, float* out) const override {
    const float d = F16At(block), dmin = F16At(block + 2);
    for (int i = 0; i < 256; ++i) {
      const int scale = KScale(block + 4, i / 32), min = KMin(block + 4, i / 32);
      const int low = (block[48 + i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4)) & 15;
      const int code = low | (((block[16 + i % 32] >> (i / 32)) & 1) << 4);
      out[i] =
          d * static_cast<float>(scale) * static_cast<float>(code) - dmin * static_cast<float>(min);
    }
  }

  void Unpack(const uint8_t* block, const Numbers& out) const override {
    for (int g = 0; g < 8; ++g) {
      out.scales[g] = static_cast<uint8_t>(KScale(block + 4, g));
      out.sub_mins[g] = static_cast<uint8_t>(KMin(block + 4, g));
      uint8_t* const codes = out.codes + g * 32;
      SetBits(block + 48 + g / 2 * 32, 32, {.from = g % 2 * 4, .count = 4}, codes);
      AddBits(block + 16, 32, {.from = g, .count = 1, .to = 4}, codes);
    }
  }
};

const RegisterFormat kRegistered(new Q5_K);

}  // namespace
}  // namespace bitshard
