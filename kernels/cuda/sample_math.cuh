// The sampler's numbers (worker/sample: token_order.h, philox.h, gumbel.h, unit_noise.h, mass.h)
// operation by operation, so that a device gives the bits of the CPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/base/math_constants.h"
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/registry/logit_scan.h"

namespace bitshard::cuda {

__device__ __forceinline__ uint64_t BitsOfDouble(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
__device__ __forceinline__ double DoubleOfBits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

__device__ __forceinline__ uint32_t SortableLogit(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 + 0 = +0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float LogitOfSortable(uint32_t s) {
  return __uint_as_float((s & 0x80000000u) != 0 ? s & 0x7fffffffu : ~s);
}

__device__ __forceinline__ uint64_t TokenKey(float logit, uint32_t token) {
  return static_cast<uint64_t>(SortableLogit(logit)) << 32 | ~token;
}
__device__ __forceinline__ uint32_t KeyToken(uint64_t key) { return ~static_cast<uint32_t>(key); }
__device__ __forceinline__ float KeyLogit(uint64_t key) {
  return LogitOfSortable(static_cast<uint32_t>(key >> 32));
}

// Never 0 for a number.
__device__ __forceinline__ uint64_t SortableScore(double x) {
  const uint64_t bits = BitsOfDouble(x + 0.0);
  return (bits >> 63) != 0 ? ~bits : bits | 0x8000000000000000ull;
}
__device__ __forceinline__ double ScoreOfSortable(uint64_t s) {
  return DoubleOfBits((s >> 63) != 0 ? s & 0x7fffffffffffffffull : ~s);
}

// The words of tokens 4 * block to 4 * block + 3.
struct NoiseWords {
  uint32_t word[4];
};
__device__ __forceinline__ NoiseWords NoiseOf(const LogitScanRequest& request, uint32_t block) {
  uint32_t c0 = block, c1 = static_cast<uint32_t>(request.position), c2 = request.choice,
           c3 = static_cast<uint32_t>(request.position >> 32);
  uint32_t k0 = static_cast<uint32_t>(request.seed), k1 = static_cast<uint32_t>(request.seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t b = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(b);
    c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// Never below the noise of the word.
__device__ __forceinline__ float NoiseBound(uint32_t word) {
  const int32_t v = static_cast<int32_t>((~word >> 1) & ~0x7fu);
  const int32_t bits = __float_as_int(static_cast<float>(v));
  return 109.51826f - 8.2629582e-8f * static_cast<float>(bits);
}

// kernels/base/math.cc's Log of a normal positive number.
__device__ __forceinline__ double LogOfNormal(double x) {
  using namespace math_constants;
  uint64_t bits = BitsOfDouble(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
  double m = DoubleOfBits(bits);
  if (m > kSqrt2) {
    m *= 0.5;
    ++exponent;
  }
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double series = 2.0 / 25.0;
#pragma unroll
  for (int i = 23; i >= 3; i -= 2) series = fma(series, z, 2.0 / i);
  const double half_square = 0.5 * f * f;
  const double e = static_cast<double>(exponent);
  const double small = fma(e, kLn2Low, s * fma(series, z, half_square));
  return e * kLn2High - ((half_square - small) - f);
}

__device__ __forceinline__ double Gumbel(uint32_t word) {
  double x = (static_cast<double>(word) + 0.5) * 0x1p-32;
#pragma unroll 1
  for (int i = 0; i < 2; ++i) x = -LogOfNormal(x);
  return x;
}

// A probability as an integer.
__device__ __forceinline__ int64_t ScaleMass(float value) {
  return static_cast<int64_t>(static_cast<double>(value) * 0x1p40 + 0.5);
}

}  // namespace bitshard::cuda
