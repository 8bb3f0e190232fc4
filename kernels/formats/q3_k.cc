// q3_k (GGUF): blocks of 256 values along K in 110 bytes: 32 bytes of third bits, 64 bytes with
// the low two bits laid out as in q2_k, 12 bytes of sub-scales, f16 d. Bit i / 32 of byte i % 32 is
// the third bit of element i. Group g of 16 values has a scale of 6 bits: the low four are nibble g
// of the first 8 bytes (the low nibbles first), the high two are bits 2 (g / 4) of byte 8 + g % 4.
// value = d * (scale - 32) * (code - 4), exact in f32.
#include "kernels/formats/gguf_block.h"

namespace bitshard {
namespace {

// Of group g, -32..31.
int Scale(const uint8_t* packed, int g) {
  const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
  return (low | (((packed[8 + g % 4] >> (g / 4 * 2)) & 3) << 4)) - 32;
}

class Q3_K final : public GgufBlock {
 public:
  Q3_K()
      : GgufBlock("q3_k", {.block = 256,
                           .block_bytes = 110,
                           .bits = 3,
                           .zero_point = 4,
                           .group_size = 16,
                           .scale = ScaleKind::kSuperS8,
                           .d_at = 108}) {}

 private:
  void DecodeBlock(const uint8_t* block, float* out) const override {
    const float d = F16At(block + 108);
    for (int i = 0; i < 256; ++i) {
      const int low = (block[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2)) & 3;
      const int code = low | (((block[i % 32] >> (i / 32)) & 1) << 2);
      out[i] = d * static_cast<float>(Scale(block + 96, i / 16)) * static_cast<float>(code - 4);
    }
  }

  void Unpack(const uint8_t* block, const Numbers& out) const override {
    for (int g = 0; g < 16; ++g) out.scales[g] = static_cast<uint8_t>(Scale(block + 96, g));
    for (int part = 0; part < 8; ++part) {
      uint8_t* const codes = out.codes + part * 32;
      SetBits(block + 32 + part / 4 * 32, 32, {.from = part % 4 * 2, .count = 2}, codes);
      AddBits(block, 32, {.from = part, .count = 1, .to = 2}, codes);
    }
  }
};

const RegisterFormat kRegistered(new Q3_K);

}  // namespace
}  // namespace bitshard
