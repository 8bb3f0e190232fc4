// q5_0 (GGUF): blocks of 32 values along K in 22 bytes: f16 scale d, u32 whose bit i is the fifth
// bit of element i, 16 bytes with the low four bits as in q4_0. value = d * (code - 16), exact in
// f32.
#include "kernels/formats/gguf_block.h"

namespace bitshard {
namespace {

class Q5_0 final : public GgufBlock {
 public:
  Q5_0() : GgufBlock("q5_0", {.block_bytes = 22, .bits = 5, .zero_point = 16}) {}

 private:
  void DecodeBlock(const uint8_t* block, float* out) const override {
    const float d = F16At(block);
    const uint32_t high = U32At(block + 2);
    const uint8_t* const nibbles = block + 6;
    for (int i = 0; i < 32; ++i) {
      const int low = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
      const int code = low | (static_cast<int>((high >> i) & 1) << 4);
      out[i] = d * static_cast<float>(code - 16);
    }
  }

  void Unpack(const uint8_t* block, const Numbers& out) const override {
    SetBits(block + 6, 16, {.from = 0, .count = 4}, out.codes);
    SetBits(block + 6, 16, {.from = 4, .count = 4}, out.codes + 16);
    AddFifthBits(U32At(block + 2), out.codes);
  }
};

const RegisterFormat kRegistered(new Q5_0);

}  // namespace
}  // namespace bitshard
