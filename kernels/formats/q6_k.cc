// q6_k (GGUF): blocks of 256 values along K in 210 bytes: 128 bytes with the low four bits, 64
// bytes with the high two, 16 signed bytes of sub-scales for groups of 16, f16 d. Each half of 128
// values has 64 and 32 bytes; its elements l, l + 32 have their low bits in the low nibbles of
// bytes l, l + 32 and elements l + 64, l + 96 in the high nibbles there; the high bits of all four
// are in byte l, from its lowest bits on. value = d * scale * (code - 32), exact in f32.
#include <cstring>

#include "kernels/formats/gguf_block.h"

namespace bitshard {
namespace {

class Q6_K final : public GgufBlock {
 public:
  Q6_K()
      : GgufBlock("q6_k", {.block = 256,
                           .block_bytes = 210,
                           .bits = 6,
                           .zero_point = 32,
                           .group_size = 16,
                           .scale = ScaleKind::kSuperS8,
                           .d_at = 208}) {}

 private:
  void DecodeBlock(const uint8_t* block, float* out) const override {
    const float d = F16At(block + 208);
    for (int i = 0; i < 256; ++i) {
      const int half = i / 128, part = i % 128 / 32, l = i % 32;
      const int low = (block[half * 64 + part % 2 * 32 + l] >> (part / 2 * 4)) & 15;
      const int code = low | (((block[128 + half * 32 + l] >> (part * 2)) & 3) << 4);
      const auto scale = static_cast<int8_t>(block[192 + i / 16]);
      out[i] = d * static_cast<float>(scale) * static_cast<float>(code - 32);
    }
  }

  void Unpack(const uint8_t* block, const Numbers& out) const override {
    std::memcpy(out.scales, block + 192, 16);
    for (int i = 0; i < 256; i += 32) {
      const int half = i / 128, part = i % 128 / 32;
      SetBits(block + half * 64 + part % 2 * 32, 32, {.from = part / 2 * 4, .count = 4},
              out.codes + i);
      AddBits(block + 128 + half * 32, 32, {.from = part * 2, .count = 2, .to = 4}, out.codes + i);
    }
  }
};

const RegisterFormat kRegistered(new Q6_K);

}  // namespace
}  // namespace bitshard
