// Every linear kernel on every ISA of this machine against the reference, bit for bit; and the
// reference against doubles.
#include "kernels/registry/linear.h"

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/registry/linear_kernel.h"
#include "kernels/registry/reduction.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

struct Shape {
  uint64_t n, k;
  int64_t segment_cols;  // 0: whole
  int offset;            // of the first group
};

// Tails of n and k, cuts inside a group, segments that fit and do not fit groups of 32 and
// activation groups of 64, a short last segment; the last two are for the reference alone.
constexpr Shape kShapes[] = {
    {16, 64, 0, 0},    {1, 64, 0, 0},     {17, 64, 0, 0},  {48, 576, 0, 0},   {33, 200, 0, 0},
    {16, 40, 0, 0},    {20, 320, 0, 16},  {16, 1, 0, 0},   {31, 15, 0, 16},   {16, 192, 64, 0},
    {40, 576, 64, 0},  {24, 200, 64, 0},  {16, 96, 32, 0}, {19, 112, 32, 16}, {16, 288, 96, 0},
    {16, 250, 96, 16}, {16, 256, 128, 0}, {8, 80, 16, 16}, {16, 72, 24, 0},   {16, 100, 0, 7},
};
constexpr int kRows[] = {1, 3, 16, 33};

struct Result {
  std::vector<float> y;
  std::vector<int64_t> sums, poison;
  bool operator==(const Result& o) const {
    if (sums != o.sums || poison != o.poison || y.size() != o.y.size()) return false;
    for (size_t i = 0; i < y.size(); ++i) {
      if (std::isnan(y[i]) && std::isnan(o.y[i])) continue;
      if (std::bit_cast<uint32_t>(y[i]) != std::bit_cast<uint32_t>(o.y[i])) return false;
    }
    return true;
  }
};

Result RunBound(const BoundLinear& linear, const std::vector<float>& x, int64_t m,
                int64_t segment_cols, Isa isa, ThreadPool& pool) {
  const int64_t n = linear.weight().rows(), k = linear.weight().cols();
  PreparedActivations prepared;
  prepared.Reserve(m, k, segment_cols);
  prepared.Prepare(x.data(), m, k, k, segment_cols, linear.forms(), isa, pool);
  Result result;
  if (segment_cols == 0) {
    result.y.assign(m * n, -1);
    linear.Run(prepared, result.y.data(), n, pool);
  } else {
    result.sums.assign(m * n, -1);
    result.poison.assign(m, 0);
    linear.RunSegments(prepared, result.sums.data(), n, result.poison.data(), pool);
  }
  return result;
}

const LinearKernel& Reference(unsigned form) {
  for (const LinearKernel* kernel : KernelRegistry<LinearKernel>::Get().all()) {
    if (kernel->form == form && std::string(kernel->name).starts_with("reference/")) return *kernel;
  }
  std::abort();
}

std::vector<PackedSpec> Specs(const Shape& s) {
  std::vector<PackedSpec> specs = {Q4Spec(s.n, s.k, s.offset), Q8Spec(s.n, s.k, s.offset)};
  for (int bits : {2, 3, 5, 6, 7}) {
    PackedSpec spec = Q4Spec(s.n, s.k, s.offset);
    spec.bits = bits;
    spec.zero_point = bits;
    specs.push_back(spec);
  }
  PackedSpec wide = Q8Spec(s.n, s.k, s.offset);
  wide.group_size = 128;
  specs.push_back(wide);
  PackedSpec narrow = Q4Spec(s.n, s.k, s.offset % 16);
  narrow.group_size = 16;
  narrow.zero_point = 8;
  specs.push_back(narrow);
  for (auto type : {PackedSpec::Type::kF32, PackedSpec::Type::kF16, PackedSpec::Type::kBf16}) {
    specs.push_back({.rows = s.n, .cols = s.k, .type = type});
  }
  return specs;
}

std::string Name(const Shape& s, const PackedSpec& spec, int64_t m) {
  return "m=" + std::to_string(m) + " n=" + std::to_string(s.n) + " k=" + std::to_string(s.k) +
         " segment=" + std::to_string(s.segment_cols) + " offset=" + std::to_string(s.offset) +
         " " + spec.Describe();
}

TEST(Linear, EveryKernelGivesTheBitsOfTheReference) {
  ThreadPool pool(2);
  uint32_t seed = 1;
  int compared = 0;
  for (const Shape& s : kShapes) {
    for (const PackedSpec& spec : Specs(s)) {
      const PackedMatrix w = RandomMatrix(spec, ++seed);
      for (ActivationMode mode : {ActivationMode::kF32, ActivationMode::kA16}) {
        if (mode == ActivationMode::kA16 && spec.type != PackedSpec::Type::kInt) continue;
        const unsigned form = FormOf(spec, mode);
        for (int m : kRows) {
          if (m > 3 && spec.bits != 4 && spec.bits != 8 && spec.type == PackedSpec::Type::kInt)
            continue;
          const std::vector<float> x = RandomFloats(m * s.k, ++seed);
          const auto reference = BoundLinear::BindTo(Reference(form), w, mode, s.segment_cols, 100);
          ASSERT_TRUE(reference.ok()) << reference.status();
          const Result expected = RunBound(*reference, x, m, s.segment_cols, Isa::kScalar, pool);
          for (const LinearKernel* kernel : KernelRegistry<LinearKernel>::Get().all()) {
            if (kernel->form != form || !HasIsa(kernel->isa)) continue;
            const auto bound = BoundLinear::BindTo(*kernel, w, mode, s.segment_cols, 100);
            if (!bound.ok()) continue;
            ++compared;
            ASSERT_TRUE(RunBound(*bound, x, m, s.segment_cols, kernel->isa, pool) == expected)
                << kernel->name << " " << Name(s, spec, m) << " seed=" << seed;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 1000);
}

TEST(Linear, F32IsNearTheExactSum) {
  ThreadPool pool(1);
  const Shape s{24, 576, 0, 0};
  for (const PackedSpec& spec : Specs(s)) {
    const PackedMatrix w = RandomMatrix(spec, 7);
    const std::vector<float> x = RandomFloats(s.k, 8);
    const auto linear = BoundLinear::Bind(w, ActivationMode::kF32, 0, 0, BestIsa());
    ASSERT_TRUE(linear.ok());
    const Result got = RunBound(*linear, x, 1, 0, BestIsa(), pool);
    std::vector<float> row(s.k);
    for (uint64_t n = 0; n < s.n; ++n) {
      w.RowToF32(n, row.data());
      double exact = 0, magnitude = 0;
      for (uint64_t k = 0; k < s.k; ++k) {
        exact += double{row[k]} * x[k];
        magnitude += std::fabs(double{row[k]} * x[k]);
      }
      // 36 fma in a lane and 4 additions of the tree, each half an ulp of a partial sum.
      EXPECT_NEAR(got.y[n], exact, magnitude * (s.k / 16 + 4) * 0x1p-24)
          << spec.Describe() << " row " << n;
    }
  }
}

TEST(Linear, A16IsNearTheExactSum) {
  ThreadPool pool(1);
  const Shape s{24, 576, 0, 0};
  for (const PackedSpec& spec : {Q4Spec(s.n, s.k), Q8Spec(s.n, s.k)}) {
    const PackedMatrix w = RandomMatrix(spec, 9);
    const std::vector<float> x = RandomFloats(s.k, 10);
    const auto linear = BoundLinear::Bind(w, ActivationMode::kA16, 0, 0, BestIsa());
    ASSERT_TRUE(linear.ok());
    const Result got = RunBound(*linear, x, 1, 0, BestIsa(), pool);
    std::vector<float> row(s.k);
    for (uint64_t n = 0; n < s.n; ++n) {
      w.RowToF32(n, row.data());
      double exact = 0, bound = 0;
      for (uint64_t k = 0; k < s.k; ++k) {
        float amax = 0;
        for (uint64_t i = k / 64 * 64; i < std::min<uint64_t>(s.k, k / 64 * 64 + 64); ++i)
          amax = std::max(amax, std::fabs(x[i]));
        exact += double{row[k]} * x[k];
        // Half a step of the fixed point, then 36 roundings in f32.
        bound += std::fabs(row[k]) * (amax / 32639 / 2) +
                 std::fabs(double{row[k]} * x[k]) * 60 * 0x1p-24;
      }
      // Code and minimum are summed apart and may be large against their sum.
      EXPECT_NEAR(got.y[n], exact, 4 * bound) << spec.Describe() << " row " << n;
    }
  }
}

TEST(Linear, SegmentsAddUpOverAnyCut) {
  ThreadPool pool(1);
  const uint64_t n = 24, k = 320;
  const int64_t segment = 64;
  const std::vector<float> x = RandomFloats(2 * k, 3);
  for (bool q8 : {false, true}) {
    const PackedSpec spec = q8 ? Q8Spec(n, k) : Q4Spec(n, k);
    const PackedMatrix whole = RandomMatrix(spec, 4);
    for (ActivationMode mode : {ActivationMode::kF32, ActivationMode::kA16}) {
      const auto linear = BoundLinear::Bind(whole, mode, segment, 5, BestIsa());
      const Result expected = RunBound(*linear, x, 2, segment, BestIsa(), pool);
      for (uint64_t cut = 0; cut <= k; cut += segment) {
        std::vector<int64_t> sums(2 * n, 0);
        for (int side = 0; side < 2; ++side) {
          const uint64_t begin = side ? cut : 0, end = side ? k : cut;
          PackedSpec part = spec;
          part.cols = end - begin;
          PackedMatrixBuilder builder(part);
          for (uint64_t r = 0; r < n; ++r) {
            std::vector<uint8_t> codes;
            std::vector<uint16_t> scales, mins;
            for (uint64_t c = begin; c < end; ++c)
              codes.push_back(static_cast<uint8_t>(whole.CodeAt(r, c)));
            for (uint64_t g = begin / 32; g < (end + 31) / 32; ++g) {
              scales.push_back(F32ToF16(whole.ScaleAt(r, g)));
              if (!q8) mins.push_back(F32ToF16(whole.MinAt(r, g)));
            }
            codes.resize(codes.size() + 1), scales.resize(scales.size() + 1),
                mins.resize(mins.size() + 1);
            builder.SetIntRow(r, codes.data(), scales.data(), q8 ? nullptr : mins.data());
          }
          const PackedMatrix w = std::move(builder).Build();
          std::vector<float> local;
          for (int row = 0; row < 2; ++row) {
            local.insert(local.end(), x.begin() + row * k + begin, x.begin() + row * k + end);
          }
          const auto bound =
              BoundLinear::Bind(w, mode, segment, 5, side ? Isa::kScalar : BestIsa());
          ASSERT_TRUE(bound.ok()) << bound.status();
          const Result got =
              RunBound(*bound, local, 2, segment, side ? Isa::kScalar : BestIsa(), pool);
          for (size_t i = 0; i < sums.size(); ++i) sums[i] += got.sums[i];
        }
        EXPECT_EQ(sums, expected.sums) << "cut=" << cut;
      }
    }
  }
}

TEST(Linear, NonFiniteActivationsPoisonTheirRowOnly) {
  ThreadPool pool(1);
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()}) {
    for (Isa isa : kAllIsas) {
      if (!HasIsa(isa)) continue;
      for (ActivationMode mode : {ActivationMode::kF32, ActivationMode::kA16}) {
        const PackedMatrix w = RandomMatrix(Q4Spec(17, 128), 5);
        std::vector<float> x = RandomFloats(3 * 128, 6);
        x[128 + 70] = bad;
        const auto whole = BoundLinear::Bind(w, mode, 0, 0, isa);
        const Result y = RunBound(*whole, x, 3, 0, isa, pool);
        for (int i = 0; i < 17; ++i) {
          EXPECT_TRUE(std::isfinite(y.y[i]));
          EXPECT_FALSE(std::isfinite(y.y[17 + i])) << whole->kernel();
          EXPECT_TRUE(std::isfinite(y.y[34 + i]));
        }
        const auto parts = BoundLinear::Bind(w, mode, 64, 2, isa);
        const Result sums = RunBound(*parts, x, 3, 64, isa, pool);
        EXPECT_EQ(sums.poison, (std::vector<int64_t>{0, 17, 0})) << parts->kernel();
      }
    }
  }
}

TEST(Linear, SegmentSumsBeyondTheLimitPoison) {
  ThreadPool pool(1);
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    PackedMatrixBuilder builder({.rows = 2, .cols = 64, .type = PackedSpec::Type::kF32});
    const std::vector<float> ones(64, 1.0f), zeros(64, 0.0f);
    builder.SetDenseRow(0, ones.data());
    builder.SetDenseRow(1, zeros.data());
    const PackedMatrix w = std::move(builder).Build();
    const auto linear = BoundLinear::Bind(w, ActivationMode::kF32, 64, 4, isa);
    std::vector<float> x(64, 0.0f);
    x[3] = 0x1p29f;  // exactly 2^31 / 4
    Result r = RunBound(*linear, x, 1, 64, isa, pool);
    EXPECT_EQ(r.poison[0], 1) << linear->kernel();
    EXPECT_EQ(r.sums[0], 0);
    x[3] = std::nextafterf(0x1p29f, 0.0f);
    r = RunBound(*linear, x, 1, 64, isa, pool);
    EXPECT_EQ(r.poison[0], 0) << linear->kernel();
    EXPECT_EQ(r.sums[0], static_cast<int64_t>(double{x[3]} * 0x1p32));
  }
}

TEST(Linear, BindTellsWhyFasterKernelsWereRefused) {
  const PackedMatrix w = RandomMatrix(Q4Spec(16, 72), 1);
  const auto linear = BoundLinear::Bind(w, ActivationMode::kA16, 24, 3, BestIsa());
  ASSERT_TRUE(linear.ok());
  EXPECT_EQ(linear->kernel(), "reference/linear_a16");
  EXPECT_NE(linear->reason().find("no multiple of 16"), std::string::npos) << linear->reason();
}

TEST(Linear, RefusesMoreSegmentsThanTheMatrixHas) {
  const PackedMatrix w = RandomMatrix(Q4Spec(16, 128), 1);
  EXPECT_FALSE(BoundLinear::Bind(w, ActivationMode::kA16, 64, 1, BestIsa()).ok());
}

TEST(Linear, EmptyMatricesGiveZeroSumsOrNothing) {
  ThreadPool pool(1);
  for (Isa isa : kAllIsas) {
    if (!HasIsa(isa)) continue;
    const PackedMatrix no_cols = RandomMatrix(Q4Spec(16, 0), 1);
    const auto linear = BoundLinear::Bind(no_cols, ActivationMode::kA16, 64, 1, isa);
    ASSERT_TRUE(linear.ok()) << linear.status();
    EXPECT_EQ(RunBound(*linear, {}, 1, 64, isa, pool).sums, std::vector<int64_t>(16, 0));
    const PackedMatrix no_rows = RandomMatrix(Q4Spec(0, 64), 1);
    const auto nothing = BoundLinear::Bind(no_rows, ActivationMode::kA16, 0, 0, isa);
    ASSERT_TRUE(nothing.ok()) << nothing.status();
    EXPECT_TRUE(RunBound(*nothing, RandomFloats(64, 1), 1, 0, isa, pool).y.empty());
  }
}

}  // namespace
}  // namespace bitshard
