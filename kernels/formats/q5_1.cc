// q5_1 (GGUF): blocks of 32 values along K in 24 bytes: f16 scale d, f16 minimum m, then as q5_0 a
// u32 whose bit i is the fifth bit of element i and 16 bytes with the low four bits. value = d *
// code + m, rounded to f32 once (the product is exact).
#include <cmath>

#include "kernels/formats/gguf_block.h"

namespace bitshard {
namespace {

class Q5_1 final : public GgufBlock {
 public:
  Q5_1() : GgufBlock("q5_1", {.block_bytes = 24, .bits = 5, .d_at = 0, .min_at = 2}) {}

 private:
  void DecodeBlock(const uint8_t* block, float* out) const override {
    const float d = F16At(block), m = F16At(block + 2);
    const uint32_t high = U32At(block + 4);
    const uint8_t* const nibbles = block + 8;
    for (int i = 0; i < 32; ++i) {
      const int low = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
      const int code = low | (static_cast<int>((high >> i) & 1) << 4);
      out[i] = std::fma(static_cast<float>(code), d, m);
    }
  }

  void Unpack(const uint8_t* block, const Numbers& out) const override {
    SetBits(block + 8, 16, {.from = 0, .count = 4}, out.codes);
    SetBits(block + 8, 16, {.from = 4, .count = 4}, out.codes + 16);
    AddFifthBits(U32At(block + 4), out.codes);
  }
};

const RegisterFormat kRegistered(new Q5_1);

}  // namespace
}  // namespace bitshard
