// The numbers of kernels/base/math.cc that its vector forms in kernels/cpu must share.
#pragma once

namespace bitshard::math_constants {

// Adding it rounds to an integer, ties to even, and leaves that integer in the low mantissa bits.
inline constexpr float kRoundShiftF32 = 0x1.8p23f;
inline constexpr double kRoundShift = 0x1.8p52;

inline constexpr float kLog2EF32 = 0x1.715476p0f;
inline constexpr float kLn2HighF32 = 0x1.62e4p-1f;  // 15 bits: n * it is exact
inline constexpr float kLn2LowF32 = 0x1.7f7d1cp-20f;
// Below the first, exp rounds to 0; above the second, it overflows.
inline constexpr float kExpLowest = -104.0f;
inline constexpr float kExpHighest = 89.0f;
// exp(r) = 1 + r + r^2 P(r) on |r| <= ln2/2, relative error 3.1e-9 (Remez, weighted by r^2 /
// exp(r)).
inline constexpr float kExpPolynomial[5] = {0.499999934439f, 0.166665205736f, 0.0416683887296f,
                                            0.00836872393598f, 0.00138145840312f};

// 2 sqrt(2/pi) and 0.044715 times it.
inline constexpr float kGeluLinearF32 = 1.5957691216057308f;
inline constexpr float kGeluCubicF32 = 0.0713548162726002f;

inline constexpr double kLog2E = 0x1.71547652b82fep0;
inline constexpr double kLn2High = 0x1.62e42feep-1;  // 32 bits: e * it is exact
inline constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
inline constexpr double kSqrt2 = 0x1.6a09e667f3bcdp0;
inline constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
// pi/2 in three parts of 53 bits.
inline constexpr double kHalfPi1 = 0x1.921fb54442d18p0;
inline constexpr double kHalfPi2 = 0x1.1a62633145c07p-54;
inline constexpr double kHalfPi3 = -0x1.f1976b7ed8fbcp-110;

}  // namespace bitshard::math_constants
