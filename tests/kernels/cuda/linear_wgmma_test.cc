// y = W x for many tokens where the order of summation is free: Hopper's warpgroup products.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/emu/counters.h"
#include "tests/kernels/cuda/linear_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

using CudaLinearWgmma = DeviceKernelTest;

std::vector<LinearResult> RunFree(const std::vector<const PackedMatrix*>& matrices,
                                  const HostActivations& x, const std::vector<float>& bias = {},
                                  int64_t pad = 0) {
  return RunLinear(matrices, x, 1, bias, pad, /*deterministic=*/false);
}

PackedMatrix RandomInts(uint64_t n, uint64_t k, const SpecForm& form, uint32_t seed) {
  return RandomMatrix(IntSpec(n, k, form), seed);
}

constexpr ScaleOffset kNone = ScaleOffset::kNone, kZero = ScaleOffset::kZero,
                      kMin = ScaleOffset::kMin;

TEST_F(CudaLinearWgmma, EveryWidthIsNearTheExactProduct) {
  using Kind = ScaleKind;
  struct Case {
    uint64_t n, k;
    int64_t m;
    SpecForm form;
  };
  std::vector<Case> cases;
  for (int bits = 2; bits <= 8; ++bits) {
    const bool odd = bits % 2 == 1;
    // Tails of rows, columns and tokens; one group; groups of one, two and four tiles.
    cases.push_back({40, 208, 258, {bits, 0, odd ? Kind::kF16 : Kind::kBf16, odd ? kZero : kNone}});
    cases.push_back({150, 320, 256, {bits, 64, odd ? Kind::kBf16 : Kind::kF16, kZero}});
    cases.push_back({16, 1040, 300, {bits, odd ? 128 : 256, Kind::kF16, odd ? kNone : kZero}});
  }
  cases.push_back({33, 192, 256, {4, 128, Kind::kF16, kZero, 64}});  // begins inside a group
  cases.push_back({24, 60, 257, {3, 0, Kind::kF16, kZero}});         // a single tile
  uint32_t seed = 7;
  int64_t other_bits = 0;
  for (const Case& c : cases) {
    const PackedMatrix w = RandomInts(c.n, c.k, c.form, ++seed);
    const auto k = static_cast<int64_t>(c.k);
    const HostActivations x(RandomFloats(c.m * k, seed + 100), c.m, k, 0);
    const std::string name = w.spec().Describe() + " m=" + std::to_string(c.m);
    const LinearResult got = RunFree({&w}, x)[0];
    const double error =
        NormError(w, x, [&](int64_t token, int64_t row) { return got.y[token * w.rows() + row]; });
    EXPECT_LE(error, LinearErrorBound(k, w.spec().group_size)) << name;
    if (HasFailure()) return;
    if (!SameBits(got, RunLinear(w, x))) ++other_bits;
  }
  // Another order of summation: that it ran at all. (A GPU may be one that has no such products.)
  if (emu::GetCounters().launches > 0) {
    EXPECT_GT(other_bits, 10);
  }
}

TEST_F(CudaLinearWgmma, MembersOfOneLaunchBiasAndStride) {
  const int64_t k = 256, m = 260;
  const PackedMatrix q = RandomInts(144, k, {4, 128, ScaleKind::kF16, kZero}, 1);
  const PackedMatrix v = RandomInts(24, k, {4, 64, ScaleKind::kF16, kZero}, 2);
  const PackedMatrix other = RandomInts(24, k, {5, 64, ScaleKind::kF16, kZero}, 3);
  const HostActivations x(RandomFloats(m * k, 4), m, k, 0);
  const std::vector<const PackedMatrix*> members = {&q, &other, &v};
  const std::vector<LinearResult> together = RunFree(members, x, {}, 3);
  for (size_t i = 0; i < members.size(); ++i)
    EXPECT_TRUE(SameBits(together[i], RunFree({members[i]}, x)[0])) << "member " << i;

  const std::vector<float> bias = RandomFloats(v.rows(), 5);
  const LinearResult with = RunFree({&v}, x, bias)[0];
  for (size_t i = 0; i < with.y.size(); ++i)
    ASSERT_EQ(with.y[i], together[2].y[i] + bias[i % v.rows()]) << i;
}

TEST_F(CudaLinearWgmma, WhatItDoesNotServeKeepsItsBits) {
  const int64_t k = 256;
  const std::vector<SpecForm> forms = {
      {4, 128, ScaleKind::kF16, kMin},       // minima
      {4, 32, ScaleKind::kF16, kZero},       // groups inside a tile
      {4, 128, ScaleKind::kF16, kZero, 16},  // a cut inside a tile
      {4, 64, ScaleKind::kF32, kZero},       // scales that are no plain halves
      {4, 16, ScaleKind::kSuperS8, kNone},   //
  };
  for (const SpecForm& form : forms) {
    const PackedMatrix w = RandomInts(40, k, form, 6);
    const HostActivations x(RandomFloats(256 * k, 7), 256, k, 0);
    EXPECT_TRUE(SameBits(RunFree({&w}, x)[0], RunLinear(w, x))) << w.spec().Describe();
  }
  const PackedMatrix w = RandomInts(40, k, {4, 128, ScaleKind::kF16, kZero}, 8);
  const HostActivations few(RandomFloats(255 * k, 9), 255, k, 0);
  EXPECT_TRUE(SameBits(RunFree({&w}, few)[0], RunLinear(w, few)));
}

// The choice names the kernel where it takes large steps, and only there.
TEST_F(CudaLinearWgmma, TheChoiceNamesTheKernelsOfDecodeAndPrefill) {
  const auto kernel = [](const PackedSpec& spec, bool deterministic = false, int64_t segment = 0,
                         ActivationMode mode = ActivationMode::kA16) {
    return TestGpu::Get().kernels().ChooseLinear(spec, segment, mode, deterministic)->kernel;
  };
  const PackedSpec served = IntSpec(64, 256, {3, 64, ScaleKind::kBf16, kZero, 64});
  if (kernel(served) == "cuda/linear_w3") GTEST_SKIP() << "no wgmma on this GPU";
  EXPECT_EQ(kernel(served), "cuda/linear_w3; prefill: cuda/linear_wgmma_w3");
  EXPECT_EQ(kernel(served, /*deterministic=*/true), "cuda/linear_w3");
  EXPECT_EQ(kernel(served, false, /*segment=*/64), "cuda/linear_w3");
  EXPECT_EQ(kernel(served, false, /*segment=*/24), "cuda/linear_plain");
  EXPECT_EQ(kernel(served, false, 0, ActivationMode::kA8), "cuda/linear_w3_a8");
  for (const SpecForm& form :
       {SpecForm{3, 32, ScaleKind::kF16, kNone}, SpecForm{3, 64, ScaleKind::kF16, kMin},
        SpecForm{3, 64, ScaleKind::kF32, kNone}, SpecForm{3, 64, ScaleKind::kF16, kNone, 16},
        SpecForm{3, 128, ScaleKind::kBf16, kNone, 48, 8, 5}}) {
    const PackedSpec spec = IntSpec(64, 256, form);
    EXPECT_EQ(kernel(spec), "cuda/linear_w3") << spec.Describe();
  }
  EXPECT_EQ(kernel({.rows = 64, .cols = 256, .type = PackedSpec::Type::kBf16}), "cuda/linear_bf16");
}

TEST_F(CudaLinearWgmma, ATokenThatIsNotFiniteSpoilsItselfAlone) {
  const int64_t k = 192, m = 258;
  const PackedMatrix w = RandomInts(20, k, {3, 64, ScaleKind::kF16, kZero}, 10);
  std::vector<float> x = RandomFloats(m * k, 11);
  const LinearResult clean = RunFree({&w}, HostActivations(x, m, k, 0))[0];
  x[5 * k + 7] = std::numeric_limits<float>::infinity();
  x[64 * k] = std::numeric_limits<float>::quiet_NaN();
  const LinearResult got = RunFree({&w}, HostActivations(x, m, k, 0))[0];
  for (int64_t token = 0; token < m; ++token) {
    for (int64_t row = 0; row < w.rows(); ++row) {
      const float y = got.y[token * w.rows() + row];
      if (token == 5 || token == 64) {
        ASSERT_TRUE(std::isnan(y)) << token;
      } else {
        ASSERT_TRUE(SameBits(y, clean.y[token * w.rows() + row])) << token;
      }
    }
  }
}

}  // namespace
}  // namespace bitshard
