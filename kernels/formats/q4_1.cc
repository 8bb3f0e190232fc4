// q4_1 (GGUF): blocks of 32 values along K in 20 bytes: f16 scale d, f16 minimum m, 16 bytes of
// 4-bit codes. Element i < 16 is the low nibble of byte i, element i >= 16 the high nibble of byte
// i - 16. value = d * code + m, rounded to f32 once (the product is exact).
#include <cmath>

#include "kernels/formats/gguf_block.h"

namespace bitshard {
namespace {

class Q4_1 final : public GgufBlock {
 public:
  Q4_1() : GgufBlock("q4_1", {.block_bytes = 20, .bits = 4, .d_at = 0, .min_at = 2}) {}

 private:
  void DecodeBlock(const uint8_t* block, float* out) const override {
    const float d = F16At(block), m = F16At(block + 2);
    const uint8_t* const nibbles = block + 4;
    for (int i = 0; i < 32; ++i) {
      const int code = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
      out[i] = std::fma(static_cast<float>(code), d, m);
    }
  }

  void Unpack(const uint8_t* block, const Numbers& out) const override {
    SetBits(block + 4, 16, {.from = 0, .count = 4}, out.codes);
    SetBits(block + 4, 16, {.from = 4, .count = 4}, out.codes + 16);
  }
};

const RegisterFormat kRegistered(new Q4_1);

}  // namespace
}  // namespace bitshard
