#include "worker/sample/unit_noise.h"

namespace bitshard {

void UnitNoise(const NoiseKey& key, uint32_t first_token, uint32_t words[64]) {
  constexpr int kLanes = 16;
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    c0[i] = first_token / 4 + static_cast<uint32_t>(i);
    c1[i] = static_cast<uint32_t>(key.position);
    c2[i] = key.choice;
    c3[i] = static_cast<uint32_t>(key.position >> 32);
  }
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t a = uint64_t{0xD2511F53} * c0[i];
      const uint64_t b = uint64_t{0xCD9E8D57} * c2[i];
      c0[i] = static_cast<uint32_t>(b >> 32) ^ c1[i] ^ k0;
      c2[i] = static_cast<uint32_t>(a >> 32) ^ c3[i] ^ k1;
      c1[i] = static_cast<uint32_t>(b);
      c3[i] = static_cast<uint32_t>(a);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  for (int i = 0; i < kLanes; ++i) {
    words[4 * i] = c0[i];
    words[4 * i + 1] = c1[i];
    words[4 * i + 2] = c2[i];
    words[4 * i + 3] = c3[i];
  }
}

}  // namespace bitshard
