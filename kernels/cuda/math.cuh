// exp and what follows from it, sin, cos: kernels/base/math.cc operation by operation, so that a
// device gives the bits of the CPU. As there, nothing may be contracted into fma but what is
// written so (nvcc: --fmad=false).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/math_constants.h"
#include "kernels/cuda/emu/cuda_emu.h"

namespace bitshard::cuda {

__device__ __forceinline__ float ExpF32(float x) {
  using namespace math_constants;
  constexpr float kC0 = kExpPolynomial[0], kC1 = kExpPolynomial[1], kC2 = kExpPolynomial[2],
                  kC3 = kExpPolynomial[3], kC4 = kExpPolynomial[4];
  if (x < kExpLowest) x = kExpLowest;  // NaN passes both
  if (x > kExpHighest) x = kExpHighest;
  const float shifted = fmaf(x, kLog2EF32, kRoundShiftF32);
  const float n = shifted - kRoundShiftF32;
  float r = fmaf(-n, kLn2HighF32, x);
  r = fmaf(-n, kLn2LowF32, r);
  float p = fmaf(kC4, r, kC3);
  p = fmaf(p, r, kC2);
  p = fmaf(p, r, kC1);
  p = fmaf(p, r, kC0);
  p = fmaf(r * r, p, r) + 1.0f;
  // Unsigned, because NaN leaves anything here.
  const uint32_t exponent = __float_as_uint(shifted) - __float_as_uint(kRoundShiftF32);
  const uint32_t half = static_cast<uint32_t>(static_cast<int32_t>(exponent) >> 1);
  return p * __uint_as_float((half + 127u) << 23) * __uint_as_float((exponent - half + 127u) << 23);
}

__device__ __forceinline__ float SiluF32(float x) { return x / (1.0f + ExpF32(-x)); }

__device__ __forceinline__ float GeluTanhF32(float x) {
  using namespace math_constants;
  const float two_u = x * fmaf(kGeluCubicF32, x * x, kGeluLinearF32);
  return x / (1.0f + ExpF32(-two_u));
}

struct CosSin {
  double cos, sin;
};

// |x| <= 2^30.
__device__ __forceinline__ CosSin CosAndSin(double x) {
  using namespace math_constants;
  const double n = fma(x, kTwoOverPi, kRoundShift) - kRoundShift;
  double r = fma(-n, kHalfPi1, x);
  r = fma(-n, kHalfPi2, r);
  r = fma(-n, kHalfPi3, r);
  const double z = r * r;
  double p = 1.0 / 355687428096000.0;  // 1/17!
  p = fma(p, z, -1.0 / 1307674368000.0);
  p = fma(p, z, 1.0 / 6227020800.0);
  p = fma(p, z, -1.0 / 39916800.0);
  p = fma(p, z, 1.0 / 362880.0);
  p = fma(p, z, -1.0 / 5040.0);
  p = fma(p, z, 1.0 / 120.0);
  p = fma(p, z, -1.0 / 6.0);
  const double sine = fma(r * z, p, r);
  p = 1.0 / 20922789888000.0;  // 1/16!
  p = fma(p, z, -1.0 / 87178291200.0);
  p = fma(p, z, 1.0 / 479001600.0);
  p = fma(p, z, -1.0 / 3628800.0);
  p = fma(p, z, 1.0 / 40320.0);
  p = fma(p, z, -1.0 / 720.0);
  p = fma(p, z, 1.0 / 24.0);
  const double half = 0.5 * z;
  const double head = 1.0 - half;
  const double cosine = head + ((1.0 - head) - half + z * z * p);
  const int64_t quadrant = static_cast<int64_t>(n);
  const double c = (quadrant & 1) != 0 ? sine : cosine;
  const double s = (quadrant & 1) != 0 ? cosine : sine;
  return {((quadrant + 1) & 2) != 0 ? -c : c, (quadrant & 2) != 0 ? -s : s};
}

}  // namespace bitshard::cuda
