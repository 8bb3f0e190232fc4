// The noise of a draw: Gumbel(0, 1) for (seed, position, choice, token), the same wherever it is
// computed. The token with the largest logit / temperature + noise is a sample of the softmax, so
// ranks need only compare their best.
//
// One Philox block serves four neighbouring tokens: counter = (token / 4, position low, choice,
// position high), key = seed, word token % 4. u = (r + 0.5) 2^-32 is never 0 or 1; noise =
// -log(-log(u)) in double lies in (-3.2, 22.9).
#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/math.h"
#include "worker/sample/philox.h"

namespace bitshard {

struct NoiseKey {
  uint64_t seed = 0;
  uint64_t position = 0;
  uint32_t choice = 0;
};

inline std::array<uint32_t, 4> NoiseWords(const NoiseKey& key, uint32_t token_block) {
  return Philox4x32({token_block, static_cast<uint32_t>(key.position), key.choice,
                     static_cast<uint32_t>(key.position >> 32)},
                    {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
}

inline double Gumbel(uint32_t word) { return -Log(-Log((word + 0.5) * 0x1p-32)); }

// No noise is above it: -log(-log(1 - 2^-33)) = 22.87...
inline constexpr double kGumbelMost = 22.9;

inline double Gumbel(const NoiseKey& key, uint32_t token) {
  return Gumbel(NoiseWords(key, token / 4)[token % 4]);
}

}  // namespace bitshard
