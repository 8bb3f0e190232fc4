// The own mathematics: error against the C library's double (or long double) functions, special
// values, and a fixed digest of many results, which must be the same on every machine and build.
#include "kernels/base/math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Units in the last place of `exact` rounded to T.
template <typename T>
double Ulps(T got, long double exact) {
  const T rounded = static_cast<T>(exact);
  const T next = std::nextafter(std::fabs(rounded), std::numeric_limits<T>::infinity());
  const long double ulp =
      static_cast<long double>(next) - std::fabs(static_cast<long double>(rounded));
  return static_cast<double>(std::fabs(static_cast<long double>(got) - exact) / ulp);
}

TEST(Math, ExpF32IsWithinOneUlp) {
  double worst = 0;
  for (uint32_t i = 0; i < 400000; ++i) {
    const float x = -104.0f + static_cast<float>(i) * (192.7f / 400000);
    worst = std::max(worst, Ulps(ExpF32(x), std::exp(static_cast<long double>(x))));
  }
  EXPECT_LE(worst, 1.0);
}

TEST(Math, ExpF32KnowsItsEnds) {
  EXPECT_EQ(ExpF32(0.0f), 1.0f);
  EXPECT_EQ(ExpF32(-0.0f), 1.0f);
  EXPECT_EQ(ExpF32(kInf), kInf);
  EXPECT_EQ(ExpF32(89.0f), kInf);
  EXPECT_EQ(ExpF32(3e38f), kInf);
  EXPECT_EQ(ExpF32(-kInf), 0.0f);
  EXPECT_EQ(ExpF32(-104.0f), 0.0f);
  EXPECT_GT(ExpF32(-103.0f), 0.0f);
  EXPECT_TRUE(std::isnan(ExpF32(kNan)));
  EXPECT_TRUE(std::isnan(ExpF32(-kNan)));
}

TEST(Math, DoubleFunctionsAreWithinTwoUlps) {
  std::mt19937_64 rng(1);
  std::uniform_real_distribution<double> unit(-1, 1);
  double exp_worst = 0, log_worst = 0, sin_worst = 0, cos_worst = 0, pow_worst = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = unit(rng);
    const double exponent = 700 * x;
    exp_worst =
        std::max(exp_worst, Ulps(Exp(exponent), std::exp(static_cast<long double>(exponent))));
    const double wide = std::exp(300 * x), near_one = 1 + x / 2;
    log_worst = std::max(log_worst, Ulps(Log(wide), std::log(static_cast<long double>(wide))));
    log_worst =
        std::max(log_worst, Ulps(Log(near_one), std::log(static_cast<long double>(near_one))));
    const double angle = std::ldexp(x, static_cast<int>(rng() % 31));
    sin_worst = std::max(sin_worst, Ulps(Sin(angle), std::sin(static_cast<long double>(angle))));
    cos_worst = std::max(cos_worst, Ulps(Cos(angle), std::cos(static_cast<long double>(angle))));
    const double base = std::exp(10 * (x + 1.01)), power = unit(rng);
    const long double exact =
        std::pow(static_cast<long double>(base), static_cast<long double>(power));
    pow_worst =
        std::max(pow_worst, static_cast<double>(std::fabs(Pow(base, power) - exact) / exact));
  }
  EXPECT_LE(exp_worst, 2);
  EXPECT_LE(log_worst, 2);
  EXPECT_LE(sin_worst, 2);
  EXPECT_LE(cos_worst, 2);
  EXPECT_LE(pow_worst, 6e-15);
}

TEST(Math, DoubleFunctionsKnowTheirEnds) {
  constexpr double kDoubleInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Exp(0), 1);
  EXPECT_EQ(Exp(1000), kDoubleInf);
  EXPECT_EQ(Exp(-1000), 0);
  EXPECT_EQ(Exp(-kDoubleInf), 0);
  EXPECT_TRUE(std::isnan(Exp(std::nan(""))));
  EXPECT_EQ(Log(1), 0);
  EXPECT_EQ(Log(0), -kDoubleInf);
  EXPECT_EQ(Log(kDoubleInf), kDoubleInf);
  EXPECT_TRUE(std::isnan(Log(-1)));
  EXPECT_NEAR(Log(5e-324), -744.4400719213812, 1e-12);
  EXPECT_EQ(Sin(0), 0);
  EXPECT_EQ(Cos(0), 1);
  EXPECT_EQ(LogF32(1.0f), 0.0f);
}

TEST(Math, ActivationsAreNearTheirDefinitions) {
  for (float x = -30; x <= 30; x += 0.0137f) {
    const double silu = x / (1 + std::exp(-double{x}));
    EXPECT_NEAR(SiluF32(x), silu, std::fabs(silu) * 4 * 0x1p-24);
    const double gelu = 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    // The error of the argument of exp grows with its magnitude |2u|.
    const double two_u = 2 * std::sqrt(2 / M_PI) * std::fabs(x + 0.044715 * x * x * x);
    EXPECT_NEAR(GeluTanhF32(x), gelu,
                std::fabs(x) * std::min(1.0, std::exp(-two_u) * (x < 0) + (x >= 0)) *
                        (4 + 4 * two_u) * 0x1p-24 +
                    1e-15)
        << x;
  }
  EXPECT_EQ(SiluF32(-3e38f), 0.0f);
  EXPECT_EQ(GeluTanhF32(3e38f), 3e38f);
}

// One number for 100,000 results. If it changes, the bits of every answer change: intended, or a
// compiler that contracts.
TEST(Math, ResultsHaveAFixedDigest) {
  uint64_t digest = 0xcbf29ce484222325ull, state = 1;
  const auto add = [&digest](uint64_t bits) { digest = (digest ^ bits) * 0x100000001b3ull; };
  for (int i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const double x = static_cast<double>(static_cast<int64_t>(state)) * 0x1p-63;
    add(std::bit_cast<uint32_t>(ExpF32(static_cast<float>(x * 100))));
    add(std::bit_cast<uint32_t>(SiluF32(static_cast<float>(x * 30))));
    add(std::bit_cast<uint64_t>(Exp(x * 700)));
    add(std::bit_cast<uint64_t>(Log(std::fabs(x))));
    add(std::bit_cast<uint64_t>(Sin(x * 1000)));
    add(std::bit_cast<uint64_t>(Cos(x * 1000)));
    add(std::bit_cast<uint64_t>(Pow(10000, x)));
  }
  EXPECT_EQ(digest, 14314010653001876418u);
}

}  // namespace
}  // namespace bitshard
