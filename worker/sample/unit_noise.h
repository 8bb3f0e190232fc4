// Noise of 64 neighbouring tokens at once, in plain loops over 16 lanes that the compiler turns
// into vector code. Same words as NoiseWords; here only for speed.
#pragma once

#include <bit>
#include <cstdint>

#include "worker/sample/gumbel.h"

namespace bitshard {

// words[i] is the word of token first_token + i. REQUIRES: first_token is a multiple of 4.
void UnitNoise(const NoiseKey& key, uint32_t first_token, uint32_t words[64]);

// Cheap and never below Gumbel(word), seldom more than 0.07 above it where noise is good.
//
// With w = 1 - u: -log(-log(u)) <= -log(w). Let v = floor(2^31 w), its low 7 bits cleared, so v
// 2^-31 <= w and f32 holds v exactly. A float's bits, read as a number, are 2^23 (127 + e + m) for
// v = 2^e (1 + m), and log2(1 + m) >= m. The constant is 158 log 2 and 0.001 for the rounding of
// these few operations. v = 0 gives 109, a bound too.
inline float NoiseBound(uint32_t word) {
  const int32_t v = static_cast<int32_t>((~word >> 1) & ~0x7fu);
  const int32_t bits = std::bit_cast<int32_t>(static_cast<float>(v));
  return 109.51826f - 8.2629582e-8f * static_cast<float>(bits);
}

}  // namespace bitshard
