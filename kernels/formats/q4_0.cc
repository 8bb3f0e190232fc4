// q4_0 (GGUF): blocks of 32 values along K in 18 bytes: f16 scale d, 16 bytes of 4-bit codes.
// Element i < 16 is the low nibble of byte i, element i >= 16 the high nibble of byte i - 16.
// value = d * (code - 8), exact in f32.
#include "kernels/formats/gguf_block.h"

namespace bitshard {
namespace {

class Q4_0 final : public GgufBlock {
 public:
  Q4_0() : GgufBlock("q4_0", {.block_bytes = 18, .bits = 4, .zero_point = 8}) {}

 private:
  void DecodeBlock(const uint8_t* block, float* out) const override {
    const float d = F16At(block);
    const uint8_t* const nibbles = block + 2;
    for (int i = 0; i < 32; ++i) {
      const int code = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
      out[i] = d * static_cast<float>(code - 8);
    }
  }

  void Unpack(const uint8_t* block, const Numbers& out) const override {
    SetBits(block + 2, 16, {.from = 0, .count = 4}, out.codes);
    SetBits(block + 2, 16, {.from = 4, .count = 4}, out.codes + 16);
  }
};

const RegisterFormat kRegistered(new Q4_0);

}  // namespace
}  // namespace bitshard
