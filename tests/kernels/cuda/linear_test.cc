// y = W x over the whole K on CUDA's tensor cores: near the exact product, and the same bits
// however tokens, rows and matrices are put together.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/emu/counters.h"
#include "kernels/cuda/emu/options.h"
#include "kernels/registry/device_kernels.h"
#include "tests/kernels/cuda/linear_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

using CudaLinear = DeviceKernelTest;

struct Shape {
  uint64_t n, k;
};
// Tails of rows, columns, runs and tiles; less than a part a warp, and more.
constexpr Shape kShapes[] = {{24, 208}, {33, 320}, {16, 64},  {1, 90},
                             {31, 15},  {40, 576}, {19, 1040}};
constexpr int64_t kTokens[] = {1, 3, 8, 9, 16, 33};
constexpr int64_t kMostTokens = 33;

// Every width with every group and kind of scale that formats have.
std::vector<SpecForm> SweepForms() {
  std::vector<SpecForm> forms;
  for (int bits = 2; bits <= 8; ++bits) {
    for (const SpecForm& form : FormsOfWidth(bits, {32, 64, 128, 0})) forms.push_back(form);
    forms.push_back({bits, 64, ScaleKind::kBf16, ScaleOffset::kZero, 48});
  }
  return forms;
}

// Tokens [first, first + count) of x.
std::vector<float> SomeTokens(const std::vector<float>& x, int64_t cols, int64_t first,
                              int64_t count) {
  return {x.begin() + first * cols, x.begin() + (first + count) * cols};
}

// All numbers of tokens, each at another place of its batch.
void ExpectSameBitsForAnyBatch(const PackedMatrix& w, const std::vector<float>& x,
                               const LinearResult& whole, const std::string& name) {
  for (const int64_t m : kTokens) {
    const int64_t first = (kMostTokens - m) / 2;
    const HostActivations part(SomeTokens(x, w.cols(), first, m), m, w.cols(), 0);
    const LinearResult got = RunLinear(w, part);
    for (int64_t i = 0; i < m * w.rows(); ++i) {
      ASSERT_TRUE(SameBits(got.y[i], whole.y[first * w.rows() + i]))
          << name << ": m=" << m << " token " << i / w.rows() << " row " << i % w.rows() << ": "
          << got.y[i] << " and " << whole.y[first * w.rows() + i];
    }
  }
}

void Sweep(const PackedSpec& spec, uint32_t seed) {
  const auto k = static_cast<int64_t>(spec.cols);
  const std::string name = spec.Describe() + " n=" + std::to_string(spec.rows) +
                           " k=" + std::to_string(k) + " seed=" + std::to_string(seed);
  const PackedMatrix w = RandomMatrix(spec, seed);
  const std::vector<float> x = RandomFloats(kMostTokens * k, seed + 1);
  const HostActivations all(x, kMostTokens, k, 0);
  const LinearResult whole = RunLinear(w, all);
  const double error = NormError(
      w, all, [&](int64_t token, int64_t row) { return whole.y[token * w.rows() + row]; });
  const bool grouped = spec.type == PackedSpec::Type::kInt;
  EXPECT_LE(error, LinearErrorBound(k, grouped ? spec.group_size : k)) << name;
  ExpectSameBitsForAnyBatch(w, x, whole, name);
}

TEST_F(CudaLinear, EveryWidthGroupAndKindIsNearTheExactProductInAnyBatch) {
  uint32_t number = 0;
  for (const SpecForm& form : SweepForms()) {
    // Scattered, so that every form meets every shape over the widths.
    const Shape& s = kShapes[(number * 2654435761u >> 8) % std::size(kShapes)];
    Sweep(IntSpec(s.n, s.k, form), ++number);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaLinear, DenseMatricesAreNearTheExactProductInAnyBatch) {
  uint32_t seed = 900;
  for (const auto type :
       {PackedSpec::Type::kF16, PackedSpec::Type::kBf16, PackedSpec::Type::kF32}) {
    for (const Shape& s : kShapes) Sweep({.rows = s.n, .cols = s.k, .type = type}, ++seed);
  }
}

// Many tokens have a kernel of their own.
TEST_F(CudaLinear, ManyTokensGiveTheBitsOfFew) {
  constexpr int64_t kMany = 257;
  std::vector<PackedSpec> specs;
  for (int bits = 2; bits <= 8; ++bits) {
    const bool odd = bits % 2 == 1;
    specs.push_back(IntSpec(odd ? 150 : 24, odd ? 90 : 400,
                            {bits, 32, odd ? ScaleKind::kBf16 : ScaleKind::kF16,
                             odd ? ScaleOffset::kZero : ScaleOffset::kMin, 16}));
    specs.push_back(IntSpec(24, 576, {bits, 16, ScaleKind::kSuperS8, ScaleOffset::kNone, 240}));
  }
  // Cells of whole tiles, for which few tokens have a loop of their own.
  specs.push_back(IntSpec(24, 1216, {8, 128, ScaleKind::kF16, ScaleOffset::kZero, 64}));
  specs.push_back({.rows = 24, .cols = 1216, .type = PackedSpec::Type::kBf16});
  for (const auto type : {PackedSpec::Type::kF16, PackedSpec::Type::kBf16})
    specs.push_back({.rows = 40, .cols = 90, .type = type});
  uint32_t seed = 1000;
  for (const PackedSpec& spec : specs) {
    const auto n = static_cast<int64_t>(spec.rows), k = static_cast<int64_t>(spec.cols);
    const PackedMatrix w = RandomMatrix(spec, ++seed);
    const std::vector<float> x = RandomFloats(kMany * k, seed);
    const LinearResult many = RunLinear(w, HostActivations(x, kMany, k, 0));
    for (const int64_t first : {0, 100, 224}) {
      const LinearResult few = RunLinear(w, HostActivations(SomeTokens(x, k, first, 33), 33, k, 0));
      for (int64_t i = 0; i < 33 * n; ++i) {
        ASSERT_TRUE(SameBits(few.y[i], many.y[first * n + i]))
            << spec.Describe() << " token " << first + i / n << " row " << i % n << ": " << few.y[i]
            << " and " << many.y[first * n + i];
      }
    }
  }
}

// Sums too small for a number are zeros that keep their sign, whichever kernel adds up the parts.
TEST_F(CudaLinear, SumsBelowAllNumbersHaveTheirSignForManyTokensAndFew) {
  constexpr int64_t kMany = 257, kFew = 33, kCols = 90;
  RawMatrix raw = RandomRaw(IntSpec(16, kCols, {4, 32}), 1400);
  const uint16_t smallest_half = 1;
  for (size_t i = 0; i < raw.scales.size(); i += sizeof(smallest_half))
    std::memcpy(raw.scales.data() + i, &smallest_half, sizeof(smallest_half));
  const PackedMatrix w = Pack(raw);
  const std::vector<float> x = RandomFloats(kMany * kCols, 1401, 0x1p-134f);
  const LinearResult many = RunLinear(w, HostActivations(x, kMany, kCols, 0));
  const LinearResult few =
      RunLinear(w, HostActivations(SomeTokens(x, kCols, 0, kFew), kFew, kCols, 0));
  int negative_zeros = 0;
  for (int64_t i = 0; i < kFew * w.rows(); ++i) {
    ASSERT_TRUE(SameBits(few.y[i], many.y[i])) << i << ": " << few.y[i] << " and " << many.y[i];
    negative_zeros += few.y[i] == 0 && std::signbit(few.y[i]) ? 1 : 0;
  }
  EXPECT_GT(negative_zeros, 0);
}

// With `rows` rows, of which row r is w's row r % w.rows().
std::vector<float> RunRepeated(const PackedMatrix& w, int64_t rows, const HostActivations& x) {
  TestGpu& gpu = TestGpu::Get();
  const UploadedMatrix w_there(w, rows);
  const UploadedActivations x_there(x);
  const DeviceBuffer y = gpu.Empty(x.m * rows * sizeof(float));
  DeviceLinear member;
  member.w = &w_there.get();
  member.y = y.as<float>();
  member.stride = rows;
  CHECK_OK(gpu.kernels().Linear({&member, 1}, x_there.get(), x.m, gpu.stream()));
  return gpu.Download<float>(y, x.m * rows);
}

// So many rows that a warp takes two row tiles at once, the last one without its second, and so
// many columns that a warp goes through its tiles in more than one round. They are the same three
// row tiles again and again, as large matrices take a host long; alone they are computed one row
// tile a warp.
TEST_F(CudaLinear, TwoRowTilesAWarpGiveTheBitsOfOne) {
  const uint64_t blocks = 2 * static_cast<uint64_t>(TestGpu::Get().multiprocessors());
  const auto n = static_cast<int64_t>(32 * blocks - 24);
  constexpr uint64_t k = 64 * (8 * 7 + 3);
  constexpr ScaleOffset kNone = ScaleOffset::kNone, kZero = ScaleOffset::kZero;
  uint32_t seed = 1500;
  for (const SpecForm& form : std::vector<SpecForm>{{2, 128, ScaleKind::kF16, kNone},
                                                    {3, 64, ScaleKind::kBf16, kZero},
                                                    {4, 128, ScaleKind::kF16, kZero, 64},
                                                    {5, 192, ScaleKind::kF16, kZero, 64},
                                                    {6, 0, ScaleKind::kBf16, kNone},
                                                    {7, 64, ScaleKind::kF16, kNone},
                                                    {8, 128, ScaleKind::kBf16, kZero}}) {
    const PackedMatrix w = RandomMatrix(IntSpec(3 * kTileRows, k, form), ++seed);
    const std::string name = w.spec().Describe();
    const int64_t m = seed % 2 == 0 ? 7 : 16;
    const HostActivations x(RandomFloats(m * k, seed), m, static_cast<int64_t>(k), 0);
    emu::ResetCounters();
    const std::vector<float> whole = RunRepeated(w, n, x);
    const emu::Counters counters = emu::GetCounters();
    if (counters.launches > 0) {  // none are counted on a GPU
      EXPECT_EQ(counters.blocks, blocks) << name;
    }
    const LinearResult part = RunLinear(w, x);
    for (int64_t i = 0; i < m * n; ++i) {
      const int64_t token = i / n, row = i % n;
      const float alone = part.y[token * w.rows() + row % w.rows()];
      ASSERT_TRUE(SameBits(whole[i], alone)) << name << " m=" << m << " token " << token << " row "
                                             << row << ": " << whole[i] << " and " << alone;
    }
    const double error =
        NormError(w, x, [&](int64_t token, int64_t row) { return part.y[token * w.rows() + row]; });
    EXPECT_LE(error, LinearErrorBound(x.cols, form.group_size == 0 ? x.cols : form.group_size))
        << name;
  }
}

TEST_F(CudaLinear, ACutOfTheRowsChangesNoBit) {
  uint32_t seed = 2000;
  for (const SpecForm& form :
       std::vector<SpecForm>{{4, 32},
                             {2, 64, ScaleKind::kBf16, ScaleOffset::kZero},
                             {6, 16, ScaleKind::kSuperS8},
                             {3, 64, ScaleKind::kNested},
                             {8, 128, ScaleKind::kBf16, ScaleOffset::kNone, 48, 8, 5}}) {
    const RawMatrix raw = RandomRaw(IntSpec(53, 336, form), ++seed);
    const PackedMatrix w = Pack(raw);
    const HostActivations x(RandomFloats(9 * 336, seed), 9, 336, 0);
    const LinearResult whole = RunLinear(w, x);
    for (const auto& [begin, end] : {std::pair<uint64_t, uint64_t>{0, 20}, {20, 53}, {7, 8}}) {
      const LinearResult part = RunLinear(Pack(CutRows(raw, begin, end)), x);
      for (uint64_t token = 0; token < 9; ++token) {
        for (uint64_t row = begin; row < end; ++row) {
          EXPECT_TRUE(
              SameBits(part.y[token * (end - begin) + row - begin], whole.y[token * 53 + row]))
              << raw.spec.Describe() << " rows [" << begin << ", " << end << ") row " << row;
        }
      }
    }
  }
}

// Members of one launch, and of several: other widths, other kinds of scales.
TEST_F(CudaLinear, MatricesTogetherGiveTheBitsOfEachAlone) {
  const uint64_t k = 320;
  std::vector<PackedMatrix> matrices;
  for (const PackedSpec& spec :
       {Q4Spec(40, k), Q8Spec(17, k), Q4Spec(1, k), IntSpec(33, k, {4, 32, ScaleKind::kF32}),
        PackedSpec{.rows = 20, .cols = k, .type = PackedSpec::Type::kBf16},
        PackedSpec{.rows = 3, .cols = k, .type = PackedSpec::Type::kF32}, Q4Spec(0, k),
        IntSpec(16, k, {4, 64, ScaleKind::kBf16, ScaleOffset::kZero})}) {
    matrices.push_back(RandomMatrix(spec, static_cast<uint32_t>(matrices.size())));
  }
  std::vector<const PackedMatrix*> members;
  for (const PackedMatrix& matrix : matrices) members.push_back(&matrix);
  for (const int64_t m : {1, 9, 33}) {
    const HostActivations x(RandomFloats(m * k, 3), m, k, 0);
    const std::vector<LinearResult> together = RunLinear(members, x, 1, {}, 5);
    for (size_t i = 0; i < members.size(); ++i) {
      EXPECT_TRUE(SameBits(together[i], RunLinear(matrices[i], x)))
          << matrices[i].spec().Describe() << " m=" << m;
    }
  }
}

TEST_F(CudaLinear, ABiasIsAddedLast) {
  const std::vector<float> bias = RandomFloats(40, 8);
  for (const PackedSpec& spec :
       {Q4Spec(40, 192), PackedSpec{.rows = 40, .cols = 192, .type = PackedSpec::Type::kF32}}) {
    const PackedMatrix w = RandomMatrix(spec, 1);
    const HostActivations x(RandomFloats(3 * 192, 2), 3, 192, 0);
    const LinearResult without = RunLinear(w, x);
    const LinearResult with = RunLinear({&w}, x, 1, bias)[0];
    for (size_t i = 0; i < with.y.size(); ++i)
      EXPECT_EQ(with.y[i], without.y[i] + bias[i % 40]) << spec.Describe();
  }
}

// The threads of a block may take turns in any order, and copies may land early or late.
TEST_F(CudaLinear, TheOrderOfThreadsChangesNoBit) {
  const emu::Options before = emu::GetOptions();
  for (const int64_t m : {9, 257}) {
    const PackedMatrix w = RandomMatrix(Q4Spec(40, 576), 4);
    const HostActivations x(RandomFloats(m * 576, 5), m, 576, 0);
    const LinearResult expected = RunLinear(w, x);
    for (const emu::Order order : {emu::Order::kBackward, emu::Order::kShuffled}) {
      emu::Options options = before;
      options.order = order;
      options.copies_land_early = order == emu::Order::kShuffled;
      emu::SetOptions(options);
      EXPECT_TRUE(SameBits(RunLinear(w, x), expected)) << "m=" << m;
    }
    emu::SetOptions(before);
  }
}

TEST_F(CudaLinear, NonFiniteActivationsSpoilTheirRowOnly) {
  for (const PackedSpec& spec :
       {Q4Spec(17, 128), Q8Spec(17, 128),
        PackedSpec{.rows = 17, .cols = 128, .type = PackedSpec::Type::kBf16},
        PackedSpec{.rows = 17, .cols = 128, .type = PackedSpec::Type::kF32}}) {
    const PackedMatrix w = RandomMatrix(spec, 5);
    std::vector<float> x = RandomFloats(3 * 128, 6);
    x[128 + 70] = std::numeric_limits<float>::infinity();
    const LinearResult got = RunLinear(w, HostActivations(x, 3, 128, 0));
    for (int i = 0; i < 17; ++i) {
      EXPECT_TRUE(std::isfinite(got.y[i])) << spec.Describe();
      EXPECT_FALSE(std::isfinite(got.y[17 + i])) << spec.Describe();
      EXPECT_TRUE(std::isfinite(got.y[34 + i])) << spec.Describe();
    }
  }
}

// Also those that no format writes: NaN, the smallest exponent.
TEST_F(CudaLinear, EveryCodeOfEightBitScalesIsItsValue) {
  for (const ScaleKind kind : {ScaleKind::kE8m0, ScaleKind::kE4m3}) {
    RawMatrix raw = RandomRaw(IntSpec(256, 16, {4, 16, kind}), 14);
    ASSERT_EQ(raw.scales.size(), 256u);
    for (int i = 0; i < 256; ++i) raw.scales[i] = static_cast<uint8_t>(i);
    for (uint8_t& code : raw.codes) code = 8;                         // 0 ...
    for (int row = 0; row < 256; ++row) raw.codes[16 * row + 5] = 9;  // ... and 1 once
    const PackedMatrix w = Pack(raw);
    std::vector<float> x(16, 0.0f);
    x[5] = 1.0f;
    const LinearResult got = RunLinear(w, HostActivations(x, 1, 16, 0));
    for (int row = 0; row < 256; ++row) {
      const float scale = w.ScaleAt(row, 0);
      EXPECT_TRUE(got.y[row] == scale || (std::isnan(got.y[row]) && std::isnan(scale)))
          << row << " " << raw.spec.Describe() << ": " << got.y[row] << " for " << scale;
    }
  }
}

TEST_F(CudaLinear, GroupsThatEndWithinARunRunPlainlyInAnyBatch) {
  uint32_t seed = 3000;
  for (const SpecForm& form :
       std::vector<SpecForm>{{4, 24},
                             {5, 40, ScaleKind::kF16, ScaleOffset::kMin, 3},
                             {2, 20, ScaleKind::kBf16, ScaleOffset::kZero},
                             {3, 32, ScaleKind::kF32, ScaleOffset::kNone, 8},
                             {7, 8, ScaleKind::kSuperU8Min, ScaleOffset::kNone, 100}}) {
    const PackedSpec spec = IntSpec(20, 130, form);
    const auto choice = TestGpu::Get().kernels().ChooseLinear(spec, 0);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->kernel, "cuda/linear_plain") << spec.Describe();
    Sweep(spec, ++seed);
  }
}

TEST_F(CudaLinear, EmptyMatricesGiveTheBiasOrNothing) {
  const HostActivations none({}, 2, 0, 0);
  for (const PackedSpec& spec : {Q4Spec(16, 0), PackedSpec{.rows = 16, .cols = 0}}) {
    const PackedMatrix w = RandomMatrix(spec, 1);
    const std::vector<float> bias = RandomFloats(16, 8);
    const LinearResult got = RunLinear({&w}, none, 1, bias)[0];
    for (size_t i = 0; i < 32; ++i) EXPECT_EQ(got.y[i], bias[i % 16]);
  }
  const HostActivations x(RandomFloats(64, 1), 1, 64, 0);
  EXPECT_TRUE(RunLinear(RandomMatrix(Q4Spec(0, 64), 1), x).y.empty());
}

TEST_F(CudaLinear, TheChoiceNamesItsKernelAndWhyNotAFaster) {
  const DeviceKernels& kernels = TestGpu::Get().kernels();
  const auto fast = kernels.ChooseLinear(Q4Spec(16, 128), 64);
  ASSERT_TRUE(fast.ok()) << fast.status();
  EXPECT_EQ(fast->kernel, "cuda/linear_w4");
  EXPECT_EQ(fast->format, Q4Spec(16, 128).Describe());
  EXPECT_TRUE(fast->refused.empty());
  EXPECT_FALSE(IsFallback(*fast));
  EXPECT_EQ(
      kernels.ChooseLinear({.rows = 1, .cols = 1, .type = PackedSpec::Type::kBf16}, 0)->kernel,
      "cuda/linear_bf16");
  const auto plain = kernels.ChooseLinear(Q4Spec(16, 128), 24);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->kernel, "cuda/linear_plain");
  EXPECT_EQ(RefusalText(plain->refused),
            "cuda/linear_w4: segments of 24 columns are no multiple of 16");
  const auto cut = kernels.ChooseLinear(Q4Spec(16, 128, 8), 0);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_NE(RefusalText(cut->refused).find("8 columns inside a group"), std::string::npos);
  EXPECT_EQ(kernels.ChooseLinear(Q4Spec(16, 128), -1).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CudaLinear, WhatDoesNotFitTogetherIsRefused) {
  TestGpu& gpu = TestGpu::Get();
  const UploadedMatrix w(RandomMatrix(Q4Spec(16, 128), 1));
  const UploadedActivations x(HostActivations(RandomFloats(128, 1), 1, 128, 0));
  const UploadedActivations short_x(HostActivations(RandomFloats(64, 1), 1, 64, 0));
  const UploadedActivations parts(HostActivations(RandomFloats(128, 1), 1, 128, 64));
  const DeviceBuffer out = gpu.Empty(16 * 8);
  DeviceLinear good;
  good.w = &w.get();
  good.y = out.as<float>();
  good.stride = 16;
  const auto refused = [&](const DeviceLinear& member, const DeviceActivations& activations) {
    return gpu.kernels().Linear({member}, activations, 1, gpu.stream()).code() ==
           absl::StatusCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused(good, x.get()));
  EXPECT_TRUE(refused(good, short_x.get()));
  EXPECT_TRUE(refused(good, parts.get()));
  DeviceLinear none = good;
  none.y = nullptr;
  EXPECT_TRUE(refused(none, x.get()));
  DeviceLinear sums = none;
  sums.sums = out.as<int64_t>();
  EXPECT_TRUE(refused(sums, x.get()));
  EXPECT_TRUE(refused(sums, parts.get()));  // no poison count
  DeviceActivations bare = x.get();
  bare.run_sum = nullptr;
  EXPECT_TRUE(refused(good, bare));
  const std::vector<DeviceLinear> many(9, good);
  EXPECT_EQ(gpu.kernels().Linear(many, x.get(), 1, gpu.stream()).code(),
            absl::StatusCode::kInvalidArgument);
  gpu.Sync();
}

}  // namespace
}  // namespace bitshard
