// q8_0 (GGUF): blocks of 32 values along K in 34 bytes: f16 scale d, 32 signed bytes; value = d *
// byte, exact in f32. The canonical codes are unsigned: byte + 128, zero point 128.
#include <cstring>

#include "kernels/formats/gguf_block.h"

namespace bitshard {
namespace {

class Q8_0 final : public GgufBlock {
 public:
  Q8_0() : GgufBlock("q8_0", {.block_bytes = 34, .bits = 8, .zero_point = 128}) {}

 private:
  void DecodeBlock(const uint8_t* block, float* out) const override {
    const float d = F16At(block);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
  }

  void Unpack(const uint8_t* block, const Numbers& out) const override {
    for (int i = 0; i < 32; i += 8) {
      uint64_t bytes;
      std::memcpy(&bytes, block + 2 + i, 8);
      bytes ^= 0x8080808080808080u;
      std::memcpy(out.codes + i, &bytes, 8);
    }
  }
};

const RegisterFormat kRegistered(new Q8_0);

}  // namespace
}  // namespace bitshard
