// rms_norm, gated_act, exp, preparation: every ISA gives the bits of the reference at every width.
#include "kernels/registry/elementwise.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/math.h"
#include "kernels/registry/activations.h"
#include "kernels/registry/elementwise_kernel.h"
#include "kernels/registry/numerics_digest.h"
#include "kernels/registry/prepare_kernel.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

std::vector<uint32_t> Bits(const std::vector<float>& v) {
  std::vector<uint32_t> out;
  for (float x : v) out.push_back(std::isnan(x) ? 0x7fc00000u : std::bit_cast<uint32_t>(x));
  return out;
}

std::vector<float> Hard(int64_t count, uint32_t seed) {
  std::vector<float> v = RandomFloats(count, seed, 20.0f);
  const float specials[] = {0.0f,
                            -0.0f,
                            1e-40f,
                            -1e-38f,
                            90.0f,
                            -90.0f,
                            104.0f,
                            -104.5f,
                            3e38f,
                            -3e38f,
                            std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()};
  for (size_t i = 0; i < std::size(specials) && static_cast<int64_t>(i * 7 + 3) < count; ++i)
    v[i * 7 + 3] = specials[i];
  return v;
}

TEST(Elementwise, EveryIsaGivesTheBitsOfTheReference) {
  ThreadPool pool(1);
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512Vnni}) {
    if (!HasIsa(isa)) continue;
    for (int64_t width : {1, 2, 15, 16, 17, 31, 33, 100, 576, 1000}) {
      const std::vector<float> a = Hard(width, 1), b = RandomFloats(width, 2),
                               smooth = RandomFloats(width, 3, 5.0f);
      std::vector<float> expected(width), got(width);
      for (const auto& x : {a, smooth}) {
        RmsNorm(x.data(), width, b.data(), 1e-5f, 1, width, expected.data(), width, Isa::kScalar,
                pool);
        RmsNorm(x.data(), width, b.data(), 1e-5f, 1, width, got.data(), width, isa, pool);
        EXPECT_TRUE(Bits(got) == Bits(expected))
            << "rms_norm " << IsaName(isa) << " width=" << width;
        for (Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
          GatedAct(activation, x.data(), width, b.data(), width, 1, width, expected.data(), width,
                   Isa::kScalar, pool);
          GatedAct(activation, x.data(), width, b.data(), width, 1, width, got.data(), width, isa,
                   pool);
          EXPECT_TRUE(Bits(got) == Bits(expected))
              << "gated_act " << IsaName(isa) << " width=" << width;
        }
        ExpShifted(x.data(), 1.5f, width, expected.data(), Isa::kScalar);
        ExpShifted(x.data(), 1.5f, width, got.data(), isa);
        EXPECT_TRUE(Bits(got) == Bits(expected)) << "exp " << IsaName(isa) << " width=" << width;
      }
    }
  }
}

TEST(Elementwise, VectorExpEqualsScalarExpOverAllExponents) {
  std::vector<float> x;
  // Every 4,099th pattern: all exponents, both signs, infinities and NaN.
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 4099)
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  std::vector<float> expected(x.size()), got(x.size());
  for (size_t i = 0; i < x.size(); ++i) expected[i] = ExpF32(x[i]);
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    ExpShifted(x.data(), 0.0f, static_cast<int64_t>(x.size()), got.data(), isa);
    EXPECT_TRUE(Bits(got) == Bits(expected)) << IsaName(isa);
  }
}

TEST(Elementwise, RmsNormIsNearTheDefinition) {
  ThreadPool pool(1);
  const int64_t width = 576;
  const std::vector<float> x = RandomFloats(width, 5, 3.0f), w = RandomFloats(width, 6);
  std::vector<float> y(width);
  RmsNorm(x.data(), width, w.data(), 1e-5f, 1, width, y.data(), width, BestIsa(), pool);
  double squares = 0;
  for (float v : x) squares += double{v} * v;
  for (int64_t i = 0; i < width; ++i) {
    const double expected = w[i] * (x[i] / std::sqrt(squares / width + 1e-5));
    // 36 + 4 roundings in the sum, halved by the root, then four more.
    EXPECT_NEAR(y[i], expected, std::fabs(expected) * 26 * 0x1p-24);
  }
}

TEST(Elementwise, InPlaceIsAllowed) {
  ThreadPool pool(1);
  const int64_t width = 83;
  const std::vector<float> x = RandomFloats(width, 5), w = RandomFloats(width, 6);
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    std::vector<float> apart(width), in_place = x;
    RmsNorm(x.data(), width, w.data(), 1e-5f, 1, width, apart.data(), width, isa, pool);
    RmsNorm(in_place.data(), width, w.data(), 1e-5f, 1, width, in_place.data(), width, isa, pool);
    EXPECT_EQ(in_place, apart);
    in_place = x;
    GatedAct(Activation::kSilu, x.data(), width, w.data(), width, 1, width, apart.data(), width,
             isa, pool);
    GatedAct(Activation::kSilu, in_place.data(), width, w.data(), width, 1, width, in_place.data(),
             width, isa, pool);
    EXPECT_EQ(in_place, apart);
  }
}

TEST(PreparedActivations, EveryIsaGivesTheSameFixedPoint) {
  ThreadPool pool(1);
  for (int64_t cols : {1, 16, 40, 64, 65, 200, 576}) {
    for (int64_t segment : {int64_t{0}, int64_t{32}, int64_t{64}, int64_t{96}}) {
      std::vector<float> x = RandomFloats(2 * cols, 9);
      for (int64_t i = 0; i < 16 && i < cols; ++i) x[i] = 0;
      x[cols - 1] = 1e-42f;
      x[cols] = cols > 1 ? 3e38f : 0;
      PreparedActivations expected, got;
      expected.Reserve(2, cols, segment);
      got.Reserve(2, cols, segment);
      expected.Prepare(x.data(), 2, cols, cols, segment, kFormA16, Isa::kScalar, pool);
      for (Isa isa : {Isa::kAvx2, Isa::kAvx512Vnni}) {
        if (!HasIsa(isa)) continue;
        got.Prepare(x.data(), 2, cols, cols, segment, kFormA16, isa, pool);
        for (int row = 0; row < 2; ++row) {
          const size_t runs = (cols + 15) / 16;
          EXPECT_EQ(std::memcmp(got.q(row), expected.q(row), runs * 32), 0);
          EXPECT_EQ(std::memcmp(got.hi(row), expected.hi(row), runs * 16), 0);
          EXPECT_EQ(std::memcmp(got.lo(row), expected.lo(row), runs * 16), 0);
          EXPECT_EQ(std::memcmp(got.run_sums(row), expected.run_sums(row), runs * 4), 0);
          EXPECT_EQ(std::memcmp(got.scales(row), expected.scales(row), got.groups() * 4), 0)
              << IsaName(isa) << " cols=" << cols << " segment=" << segment;
        }
      }
    }
  }
}

TEST(PreparedActivations, QuantizesToWithinHalfAStep) {
  ThreadPool pool(1);
  const std::vector<float> x = RandomFloats(128, 4);
  PreparedActivations prepared;
  prepared.Reserve(1, 128, 0);
  prepared.Prepare(x.data(), 1, 128, 128, 0, kFormA16, BestIsa(), pool);
  for (int k = 0; k < 128; ++k) {
    const int at = k / 16 * 16 + LaneOfColumn(k % 16);
    const float s = prepared.scales(0)[k / 64];
    EXPECT_NEAR(prepared.q(0)[at] * double{s}, x[k], s * 0.501);
    EXPECT_EQ(prepared.q(0)[at], 256 * prepared.hi(0)[at] + prepared.lo(0)[at]);
  }
}

TEST(PreparedActivations, NonFiniteGroupsGetNanScales) {
  ThreadPool pool(1);
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    std::vector<float> x = RandomFloats(192, 4);
    x[70] = -std::numeric_limits<float>::infinity();
    x[191] = -std::numeric_limits<float>::quiet_NaN();
    PreparedActivations prepared;
    prepared.Reserve(1, 192, 0);
    prepared.Prepare(x.data(), 1, 192, 192, 0, kFormA16, isa, pool);
    EXPECT_TRUE(std::isfinite(prepared.scales(0)[0]));
    EXPECT_TRUE(std::isnan(prepared.scales(0)[1]));
    EXPECT_TRUE(std::isnan(prepared.scales(0)[2]));
    EXPECT_EQ(prepared.q(0)[100], 0);
  }
}

// Changes only with the arithmetic itself: then say so, because mixed groups of workers refuse each
// other.
TEST(NumericsDigest, IsTheSameForEveryIsaAndMachine) {
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    EXPECT_EQ(NumericsDigest(isa), "2cdc0fe42a449954151b1ede7abf8d19") << IsaName(isa);
  }
}

}  // namespace
}  // namespace bitshard
