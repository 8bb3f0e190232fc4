#include "kernels/base/math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/base/math_constants.h"

namespace bitshard {
namespace {

using namespace math_constants;

// 2^n. REQUIRES: -1022 <= n <= 1023.
double PowerOfTwo(int64_t n) {
  return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

// Quadrant and remainder of x / (pi/2): x = n pi/2 + r, |r| <= pi/4. The first fma is exact (both
// terms are multiples of 2^-53 and their difference is below 1).
struct Reduced {
  int64_t n;
  double r;
};
Reduced ReduceByHalfPi(double x) {
  const double shifted = std::fma(x, kTwoOverPi, kRoundShift);
  const double n = shifted - kRoundShift;
  double r = std::fma(-n, kHalfPi1, x);
  r = std::fma(-n, kHalfPi2, r);
  r = std::fma(-n, kHalfPi3, r);
  return {static_cast<int64_t>(n), r};
}

// Taylor in r^2: at |r| <= pi/4 the first term left out is below 1e-19 of the result.
double SinPolynomial(double r) {
  const double z = r * r;
  double p = 1.0 / 355687428096000.0;  // 1/17!
  p = std::fma(p, z, -1.0 / 1307674368000.0);
  p = std::fma(p, z, 1.0 / 6227020800.0);
  p = std::fma(p, z, -1.0 / 39916800.0);
  p = std::fma(p, z, 1.0 / 362880.0);
  p = std::fma(p, z, -1.0 / 5040.0);
  p = std::fma(p, z, 1.0 / 120.0);
  p = std::fma(p, z, -1.0 / 6.0);
  return std::fma(r * z, p, r);
}

double CosPolynomial(double r) {
  const double z = r * r;
  double p = 1.0 / 20922789888000.0;  // 1/16!
  p = std::fma(p, z, -1.0 / 87178291200.0);
  p = std::fma(p, z, 1.0 / 479001600.0);
  p = std::fma(p, z, -1.0 / 3628800.0);
  p = std::fma(p, z, 1.0 / 40320.0);
  p = std::fma(p, z, -1.0 / 720.0);
  p = std::fma(p, z, 1.0 / 24.0);
  const double half = 0.5 * z;
  const double head = 1.0 - half;
  return head + ((1.0 - head) - half + z * z * p);
}

}  // namespace

float ExpF32(float x) {
  x = kExpLowest > x ? kExpLowest : x;  // NaN passes both
  x = kExpHighest < x ? kExpHighest : x;
  const float shifted = std::fma(x, kLog2EF32, kRoundShiftF32);
  const float n = shifted - kRoundShiftF32;
  float r = std::fma(-n, kLn2HighF32, x);
  r = std::fma(-n, kLn2LowF32, r);
  float p = kExpPolynomial[4];
  p = std::fma(p, r, kExpPolynomial[3]);
  p = std::fma(p, r, kExpPolynomial[2]);
  p = std::fma(p, r, kExpPolynomial[1]);
  p = std::fma(p, r, kExpPolynomial[0]);
  p = std::fma(r * r, p, r) + 1.0f;
  // Two factors, because 2^n alone may be out of range; the first product is exact.
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRoundShiftF32);
  const int32_t half = exponent >> 1;
  const float a = std::bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
  const float b = std::bit_cast<float>(static_cast<uint32_t>(exponent - half + 127) << 23);
  return p * a * b;
}

float LogF32(float x) { return static_cast<float>(Log(static_cast<double>(x))); }

float SigmoidF32(float x) { return 1.0f / (1.0f + ExpF32(-x)); }

float SiluF32(float x) { return x / (1.0f + ExpF32(-x)); }

// tanh(u) = 2 sigmoid(2u) - 1, hence 0.5 x (1 + tanh(u)) = x sigmoid(2u).
float GeluTanhF32(float x) {
  const float two_u = x * std::fma(kGeluCubicF32, x * x, kGeluLinearF32);
  return x / (1.0f + ExpF32(-two_u));
}

double Exp(double x) {
  if (std::isnan(x)) return x;
  if (x > 709.8) return std::numeric_limits<double>::infinity();
  if (x < -745.2) return 0.0;
  const double shifted = std::fma(x, kLog2E, kRoundShift);
  const double n = shifted - kRoundShift;
  double r = std::fma(-n, kLn2High, x);
  r = std::fma(-n, kLn2Low, r);
  double p = 1.0 / 6227020800.0;  // 1/13!; the next term is below 1e-17
  p = std::fma(p, r, 1.0 / 479001600.0);
  p = std::fma(p, r, 1.0 / 39916800.0);
  p = std::fma(p, r, 1.0 / 3628800.0);
  p = std::fma(p, r, 1.0 / 362880.0);
  p = std::fma(p, r, 1.0 / 40320.0);
  p = std::fma(p, r, 1.0 / 5040.0);
  p = std::fma(p, r, 1.0 / 720.0);
  p = std::fma(p, r, 1.0 / 120.0);
  p = std::fma(p, r, 1.0 / 24.0);
  p = std::fma(p, r, 1.0 / 6.0);
  p = std::fma(p, r, 0.5);
  p = std::fma(r * r, p, r) + 1.0;
  const int64_t exponent = static_cast<int64_t>(n);
  const int64_t half = exponent >> 1;
  return p * PowerOfTwo(half) * PowerOfTwo(exponent - half);
}

double Log(double x) {
  if (std::isnan(x)) return x;
  if (x < 0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0) return -std::numeric_limits<double>::infinity();
  if (x == std::numeric_limits<double>::infinity()) return x;
  int64_t exponent = 0;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    exponent = -54;
  }
  // x = 2^exponent m, m in [sqrt(1/2), sqrt(2)).
  uint64_t bits = std::bit_cast<uint64_t>(x);
  exponent += static_cast<int64_t>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffull) | 0x3ff0000000000000ull;
  double m = std::bit_cast<double>(bits);
  if (m > kSqrt2) {
    m *= 0.5;
    ++exponent;
  }
  // With s = f / (2 + f): log(1 + f) = 2 atanh(s) = f - (f^2/2 - s (f^2/2 + R)), R = 2 s^2/3 + 2
  // s^4/5 + ...
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double series = 2.0 / 25.0;
  for (int i = 23; i >= 3; i -= 2) series = std::fma(series, z, 2.0 / i);
  const double half_square = 0.5 * f * f;
  const double e = static_cast<double>(exponent);
  const double small = std::fma(e, kLn2Low, s * std::fma(series, z, half_square));
  return e * kLn2High - ((half_square - small) - f);
}

double Sin(double x) {
  const Reduced reduced = ReduceByHalfPi(x);
  const double v = (reduced.n & 1) ? CosPolynomial(reduced.r) : SinPolynomial(reduced.r);
  return (reduced.n & 2) ? -v : v;
}

double Cos(double x) {
  const Reduced reduced = ReduceByHalfPi(x);
  const double v = (reduced.n & 1) ? SinPolynomial(reduced.r) : CosPolynomial(reduced.r);
  return ((reduced.n + 1) & 2) ? -v : v;
}

double Pow(double x, double y) { return Exp(y * Log(x)); }

}  // namespace bitshard
