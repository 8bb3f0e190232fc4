// rms_norm, gated_act, exp, preparation: every ISA gives the bits of the reference at every width.
#include "kernels/registry/elementwise.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/math.h"
#include "kernels/registry/elementwise_kernel.h"
#include "kernels/registry/numerics_digest.h"
#include "kernels/registry/prepare_kernel.h"
#include "kernels/registry/reduction.h"
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

TEST(Elementwise, SumsOfARowHaveTheBitsOfTheDefinitionOnEveryIsa) {
  // Ties and near ties of both roundings, to double and to f32, and the ends of the range.
  constexpr int64_t kOne = 1;
  const std::vector<int64_t> hard = {0,
                                     1,
                                     -1,
                                     INT64_MAX,
                                     INT64_MIN,
                                     INT64_MIN + 1,
                                     kOne << 62,
                                     -(kOne << 53) - 1,
                                     (kOne << 53) + 1,
                                     (kOne << 53) + 3,
                                     (kOne << 60) + (kOne << 36),
                                     (kOne << 60) + 3 * (kOne << 36),
                                     (kOne << 60) + (kOne << 36) + 1,
                                     -(kOne << 60) - (kOne << 36) - 1,
                                     (kOne << 62) + (kOne << 38) + 256,
                                     0xffffffff,
                                     -0x100000000,
                                     0x7fffffff80000000};
  for (int64_t width : {1, 2, 3, 5, 7, 8, 16, 33, 576}) {
    std::vector<int64_t> sums;
    const std::vector<float> values = RandomFloats(width, 3);
    for (float v : values) sums.push_back(F32ToFixed(v * 1000) + 12345);
    for (size_t i = 0; i < sums.size(); ++i) {
      if (i < hard.size() || i % 3 == 0)
        sums[i] = hard[(i + static_cast<size_t>(width)) % hard.size()];
    }
    const std::vector<float> bias = RandomFloats(width, 4), residual = RandomFloats(width, 5);
    for (const bool with_bias : {false, true}) {
      for (const bool with_residual : {false, true}) {
        std::vector<float> expected;
        for (int64_t i = 0; i < width; ++i) {
          float v = FixedToF32(sums[i]);
          if (with_bias) v = v + bias[i];
          if (with_residual) v = residual[i] + v;
          expected.push_back(v);
        }
        for (Isa isa : kAllIsas) {
          if (!HasIsa(isa)) continue;
          std::vector<float> y = residual;  // in place
          ChooseRowKernels(isa).sums(sums.data(), with_bias ? bias.data() : nullptr,
                                     with_residual ? y.data() : nullptr, width, y.data());
          EXPECT_EQ(std::memcmp(y.data(), expected.data(), width * 4), 0)
              << IsaName(isa) << " width=" << width << " " << with_bias << with_residual;
        }
      }
    }
  }
}

TEST(Elementwise, EverySetOfInstructionsHasItsOwnKernels) {
  for (const char* op : {"rms_norm", "gated_act", "sums", "exp"}) {
    for (Isa isa : {Isa::kAvx2, Isa::kAvx512Vnni}) {
      if (!HasIsa(isa)) continue;
      const KernelChoice choice = ElementwiseChoice(op, isa);
      EXPECT_EQ(choice.isa, isa) << op << " " << choice.kernel;
      EXPECT_FALSE(IsReference(choice.kernel)) << choice.kernel;
    }
  }
}

// Changes only with the arithmetic itself: then say so, because mixed groups of workers refuse each
// other.
TEST(NumericsDigest, IsTheSameForEveryIsaAndMachine) {
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    EXPECT_EQ(NumericsDigest(isa), "4abeb66709326dbd22d77c28e3e13adc") << IsaName(isa);
  }
}

}  // namespace
}  // namespace bitshard
