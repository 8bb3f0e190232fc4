// All 65,536 patterns of bf16 and f16, and rounding at every boundary between neighbours.
#include "kernels/base/float_types.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

// The value of an f16 pattern by the definition of IEEE 754; NaN for NaN.
double F16Definition(uint32_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  double value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) value = mantissa == 0 ? INFINITY : NAN;
  return bits & 0x8000 ? -value : value;
}

TEST(FloatTypes, EveryF16PatternHasItsValue) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float got = F16ToF32(static_cast<uint16_t>(bits));
    const double expected = F16Definition(bits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
    } else {
      EXPECT_EQ(got, expected) << bits;
      EXPECT_EQ(std::signbit(got), std::signbit(expected)) << bits;
    }
  }
}

TEST(FloatTypes, EveryF16PatternComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t back = F32ToF16(F16ToF32(static_cast<uint16_t>(bits)));
    if ((bits & 0x7fff) > 0x7c00) {
      EXPECT_GT(back & 0x7fff, 0x7c00) << bits;
    } else {
      EXPECT_EQ(back, bits);
    }
  }
}

TEST(FloatTypes, EveryBf16PatternComesBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = Bf16ToF32(static_cast<uint16_t>(bits));
    EXPECT_EQ(std::bit_cast<uint32_t>(value), bits << 16);
    const uint16_t back = F32ToBf16(value);
    if ((bits & 0x7fff) > 0x7f80) {
      EXPECT_TRUE(std::isnan(Bf16ToF32(back))) << bits;
    } else {
      EXPECT_EQ(back, bits);
    }
  }
}

// Around the middle of each pair of positive neighbours: below rounds down, above up, the middle to
// even.
template <typename ToF32, typename FromF32>
void CheckRounding(uint32_t infinity, ToF32 to_f32, FromF32 from_f32) {
  for (uint32_t bits = 0; bits + 1 < infinity; ++bits) {
    const double low = to_f32(static_cast<uint16_t>(bits)),
                 high = to_f32(static_cast<uint16_t>(bits + 1));
    const float middle =
        static_cast<float>((low + high) / 2);  // has one more bit than the type: exact in f32
    const uint32_t even = bits & 1 ? bits + 1 : bits;
    for (uint32_t sign : {0u, 0x8000u}) {
      const float s = sign ? -1.0f : 1.0f;
      EXPECT_EQ(from_f32(s * middle), even | sign) << bits;
      EXPECT_EQ(from_f32(s * std::nextafterf(middle, 0.0f)), bits | sign) << bits;
      EXPECT_EQ(from_f32(s * std::nextafterf(middle, INFINITY)), (bits + 1) | sign) << bits;
    }
  }
}

TEST(FloatTypes, F16RoundsToNearestEven) { CheckRounding(0x7c00, F16ToF32, F32ToF16); }

TEST(FloatTypes, Bf16RoundsToNearestEven) {
  // The middle between two subnormal bf16 is an f32 too.
  CheckRounding(0x7f80, Bf16ToF32, F32ToBf16);
}

TEST(FloatTypes, OverflowAndTinyValuesRoundToTheEnds) {
  EXPECT_EQ(F32ToF16(65504.0f), 0x7bff);
  EXPECT_EQ(F32ToF16(65519.99f), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(-1e30f), 0xfc00);
  EXPECT_EQ(F32ToF16(0x1p-25f), 0);
  EXPECT_EQ(F32ToF16(std::nextafterf(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(F32ToF16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(F32ToBf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(F32ToBf16(-std::numeric_limits<float>::infinity()), 0xff80);
}

TEST(FloatTypes, E8m0IsAPowerOfTwo) {
  for (int bits = 0; bits < 255; ++bits)
    EXPECT_EQ(E8m0ToF32(static_cast<uint8_t>(bits)), std::ldexp(1.0f, bits - 127)) << bits;
  EXPECT_TRUE(std::isnan(E8m0ToF32(255)));
}

TEST(FloatTypes, E4m3HasItsValues) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = E4m3ToF32(static_cast<uint8_t>(bits));
    EXPECT_EQ(std::signbit(value), bits >= 128) << bits;
    if (bits % 128 == 127) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    const int exponent = bits / 8 % 16, mantissa = bits % 8;
    const float magnitude = exponent == 0
                                ? std::ldexp(static_cast<float>(mantissa), -9)
                                : std::ldexp(8.0f + static_cast<float>(mantissa), exponent - 10);
    EXPECT_EQ(std::fabs(value), magnitude) << bits;
  }
  EXPECT_EQ(E4m3ToF32(0x7e), 448.0f);
  EXPECT_EQ(E4m3ToF32(0x38), 1.0f);
  EXPECT_EQ(E4m3ToF32(0x01), 0x1p-9f);
}

}  // namespace
}  // namespace bitshard
