// Every linear kernel of every instruction set of this machine against the reference, bit for bit;
// and the reference against doubles.
#include "kernels/registry/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/registry/linear_kernel.h"
#include "kernels/registry/reduction.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

constexpr ActivationMode kModes[] = {ActivationMode::kF32, ActivationMode::kA16,
                                     ActivationMode::kA8};

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
    if (kernel->form == form && IsReference(kernel->name)) return *kernel;
  }
  std::abort();
}

// All that a machine with that set may choose from.
std::vector<const LinearKernel*> KernelsOf(unsigned form, Isa isa) {
  std::vector<const LinearKernel*> kernels;
  for (const LinearKernel* kernel : KernelRegistry<LinearKernel>::Get().all()) {
    if (kernel->form == form && kernel->isa == isa && !IsReference(kernel->name))
      kernels.push_back(kernel);
  }
  return kernels;
}

// What depends on the machine says what it did not run and why.
class LinearOnIsa : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (HasIsa(GetParam())) return;
    std::string why;
    for (const std::string& reason : ProbeIsa().reasons) why += reason + "; ";
    GTEST_SKIP() << "no " << IsaName(GetParam()) << " here: " << why;
  }
};
INSTANTIATE_TEST_SUITE_P(Isa, LinearOnIsa, testing::ValuesIn(kAllIsas),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

struct Shape {
  uint64_t n, k;
};
// Tails of rows, columns, runs and tiles; a single segment of 96 that ends in its second tile of 64
// columns, full or not; the last is more than the kernels unpack at once.
constexpr Shape kShapes[] = {{16, 64},  {1, 64},   {24, 1},   {31, 15},  {18, 96},  {35, 90},
                             {19, 112}, {17, 200}, {33, 576}, {40, 320}, {48, 1040}};
constexpr int kRows[] = {1, 3, 16, 33, 257};
// 96: cells that begin in the middle of a tile of 64 columns.
constexpr int64_t kSegments[] = {0, 64, 32, 96};

// One case in `stride` of: shapes x specs x modes x segments x rows of x. Returns how many runs of
// kernels it compared.
int CompareWithReference(Isa isa, uint32_t stride) {
  ThreadPool pool(2), one(1);
  uint32_t number = 0, seed = 0;
  int compared = 0;
  for (const Shape& s : kShapes) {
    const std::vector<float> x = RandomFloats(kRows[4] * s.k, ++seed);
    for (const NamedSpec& named : AllSpecs(s.n, s.k)) {
      const PackedMatrix w = RandomMatrix(named.spec, ++seed);
      for (const ActivationMode mode : kModes) {
        const unsigned form = FormOf(named.spec, mode);
        if (form == kFormF32 && mode != ActivationMode::kF32) continue;
        for (const int64_t segment : kSegments) {
          for (const int m : kRows) {
            // Scattered, so that every value of every side meets every value of the others.
            if (((number++ * 2654435761u) >> 8) % stride != 0) continue;
            const auto reference = BoundLinear::BindTo(Reference(form), w, mode, segment, 100);
            if (!reference.ok()) {
              ADD_FAILURE() << reference.status();
              return compared;
            }
            const Result expected = RunBound(*reference, x, m, segment, Isa::kScalar, one);
            bool served = false;
            for (const LinearKernel* kernel : KernelsOf(form, isa)) {
              const auto bound = BoundLinear::BindTo(*kernel, w, mode, segment, 100);
              if (!bound.ok()) continue;
              served = true;
              ++compared;
              if (RunBound(*bound, x, m, segment, isa, pool) == expected) continue;
              ADD_FAILURE() << kernel->name << " m=" << m << " n=" << s.n << " k=" << s.k
                            << " segment=" << segment << " " << named.name << " seed=" << seed;
              return compared;
            }
            EXPECT_TRUE(served) << "no kernel of " << IsaName(isa) << " takes " << named.name
                                << " segment=" << segment << " in form " << form;
          }
        }
      }
    }
  }
  return compared;
}

TEST_P(LinearOnIsa, EveryKernelGivesTheBitsOfTheReference) {
  EXPECT_GT(CompareWithReference(GetParam(), 48), 800);
}

// All of it: minutes. Run with --gtest_also_run_disabled_tests.
TEST_P(LinearOnIsa, DISABLED_EveryKernelGivesTheBitsOfTheReferenceInEveryCase) {
  const int compared = CompareWithReference(GetParam(), 1);
  EXPECT_GT(compared, 20000);
  std::printf("%d runs compared\n", compared);
}

// Blocks of rows of x that are not full, behind full ones, by odd numbers of row tiles.
TEST_P(LinearOnIsa, EveryNumberOfRowsGivesTheBitsOfTheReference) {
  ThreadPool pool(1);
  const Isa isa = GetParam();
  constexpr uint64_t kN = 7 * 16, kK = 336;
  const std::vector<float> x = RandomFloats(72 * kK, 21);
  for (const PackedSpec& spec : {Q4Spec(kN, kK), Q8Spec(kN, kK), IntSpec(kN, kK, {5, 0})}) {
    const PackedMatrix w = RandomMatrix(spec, 22);
    for (const ActivationMode mode : kModes) {
      for (const int64_t segment : {0, 48}) {
        const unsigned form = FormOf(spec, mode);
        const auto reference = BoundLinear::BindTo(Reference(form), w, mode, segment, 9);
        ASSERT_TRUE(reference.ok()) << reference.status();
        int served = 0;
        for (const LinearKernel* kernel : KernelsOf(form, isa)) {
          const auto linear = BoundLinear::BindTo(*kernel, w, mode, segment, 9);
          if (!linear.ok()) continue;
          ++served;
          for (const int64_t m : {2, 5, 6, 7, 8, 15, 16, 17, 18, 19, 64, 65, 66, 67, 72}) {
            EXPECT_TRUE(RunBound(*linear, x, m, segment, isa, pool) ==
                        RunBound(*reference, x, m, segment, Isa::kScalar, pool))
                << linear->kernel() << " m=" << m << " segment=" << segment << " "
                << spec.Describe();
          }
        }
        EXPECT_GE(served, isa == Isa::kAvx512Vnni && form == kFormA16 ? 2 : 1) << spec.Describe();
      }
    }
  }
}

// A rank may own a single segment: a head of 80 or 96 columns, or the shorter last one.
TEST_P(LinearOnIsa, OneSegmentOfNoWholeTilesGivesTheBitsOfTheReference) {
  ThreadPool pool(1);
  const Isa isa = GetParam();
  struct Case {
    uint64_t k;
    int64_t segment;
  };
  for (const Case& c : {Case{80, 80}, {96, 96}, {90, 96}, {112, 112}, {390, 400}}) {
    const std::vector<float> x = RandomFloats(17 * c.k, 15);
    for (const PackedSpec& spec : {Q4Spec(17, c.k), Q8Spec(17, c.k), IntSpec(17, c.k, {3, 0})}) {
      const PackedMatrix w = RandomMatrix(spec, 16);
      for (const ActivationMode mode : kModes) {
        const auto reference =
            BoundLinear::BindTo(Reference(FormOf(spec, mode)), w, mode, c.segment, 9);
        for (const LinearKernel* kernel : KernelsOf(FormOf(spec, mode), isa)) {
          const auto linear = BoundLinear::BindTo(*kernel, w, mode, c.segment, 9);
          if (!linear.ok()) continue;
          for (const int64_t m : {1, 2, 4, 7, 17}) {
            EXPECT_TRUE(RunBound(*linear, x, m, c.segment, isa, pool) ==
                        RunBound(*reference, x, m, c.segment, Isa::kScalar, pool))
                << linear->kernel() << " m=" << m << " k=" << c.k << " " << spec.Describe();
          }
        }
      }
    }
  }
}

TEST(Linear, F32IsNearTheExactSum) {
  ThreadPool pool(1);
  const Shape s{24, 576};
  for (const NamedSpec& named : AllSpecs(s.n, s.k)) {
    const PackedSpec& spec = named.spec;
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
          << named.name << " row " << n;
    }
  }
}

TEST(Linear, IntegerModesAreNearTheExactSum) {
  ThreadPool pool(1);
  const Shape s{24, 576};
  for (const ActivationMode mode : {ActivationMode::kA16, ActivationMode::kA8}) {
    const bool a16 = mode == ActivationMode::kA16;
    const uint64_t group = a16 ? kActivationGroup : kA8Group;
    for (const PackedSpec& spec : {Q4Spec(s.n, s.k), Q8Spec(s.n, s.k)}) {
      const PackedMatrix w = RandomMatrix(spec, 9);
      const std::vector<float> x = RandomFloats(s.k, 10);
      const auto linear = BoundLinear::Bind(w, mode, 0, 0, BestIsa());
      ASSERT_TRUE(linear.ok());
      const Result got = RunBound(*linear, x, 1, 0, BestIsa(), pool);
      std::vector<float> row(s.k);
      for (uint64_t n = 0; n < s.n; ++n) {
        w.RowToF32(n, row.data());
        double exact = 0, bound = 0;
        for (uint64_t k = 0; k < s.k; ++k) {
          float amax = 0;
          for (uint64_t i = k / group * group; i < k / group * group + group; ++i)
            amax = std::max(amax, std::fabs(x[i]));
          exact += double{row[k]} * x[k];
          // Half a step of the fixed point, then 36 roundings in f32.
          bound += std::fabs(row[k]) * (amax / (a16 ? 32639 : 127) / 2) +
                   std::fabs(double{row[k]} * x[k]) * 60 * 0x1p-24;
        }
        // Code and minimum are summed apart and may be large against their sum.
        EXPECT_NEAR(got.y[n], exact, (a16 ? 4 : 1) * bound) << spec.Describe() << " row " << n;
      }
    }
  }
}

// Three ranks, each with another instruction set, and every kind of scale.
TEST(Linear, SegmentsAddUpOverAnyCut) {
  ThreadPool pool(1);
  const uint64_t n = 24, k = 600;
  const int64_t segment = 64, segments = 10;
  const std::vector<float> x = RandomFloats(2 * k, 3);
  uint32_t seed = 4;
  for (const NamedSpec& named : AllSpecs(n, k)) {
    if (named.spec.type != PackedSpec::Type::kInt) continue;
    const RawMatrix raw = RandomRaw(named.spec, ++seed);
    const PackedMatrix whole = Pack(raw);
    for (const ActivationMode mode : kModes) {
      const auto linear = BoundLinear::Bind(whole, mode, segment, segments, BestIsa());
      ASSERT_TRUE(linear.ok()) << linear.status();
      const Result expected = RunBound(*linear, x, 2, segment, BestIsa(), pool);
      for (const auto& [first, second] :
           {std::pair<uint64_t, uint64_t>{0, 64}, {64, 320}, {192, 256}, {320, 600}}) {
        std::vector<int64_t> sums(2 * n, 0);
        const uint64_t cuts[] = {0, first, second, k};
        for (int rank = 0; rank < 3; ++rank) {
          const uint64_t begin = cuts[rank], end = cuts[rank + 1];
          const PackedMatrix w = Pack(CutColumns(raw, begin, end));
          std::vector<float> local;
          for (int row = 0; row < 2; ++row)
            local.insert(local.end(), x.begin() + row * k + begin, x.begin() + row * k + end);
          const Isa isa = std::min(kAllIsas[rank], BestIsa());
          const auto bound = BoundLinear::Bind(w, mode, segment, segments, isa);
          ASSERT_TRUE(bound.ok()) << bound.status();
          const Result got = RunBound(*bound, local, 2, segment, isa, pool);
          for (size_t i = 0; i < sums.size(); ++i) sums[i] += got.sums[i];
        }
        EXPECT_EQ(sums, expected.sums)
            << named.name << " cut at " << first << " and " << second << " " << linear->kernel();
      }
    }
  }
}

// Also those that no format writes: NaN, infinite products, the smallest exponent.
TEST_P(LinearOnIsa, EveryCodeOfEightBitScalesIsItsValue) {
  ThreadPool pool(1);
  const std::vector<float> x = RandomFloats(256, 13);
  for (const ScaleKind kind : {ScaleKind::kE8m0, ScaleKind::kE4m3}) {
    RawMatrix raw = RandomRaw(IntSpec(16, 256, {4, 16, kind}), 14);
    ASSERT_EQ(raw.scales.size(), 256u);
    for (int i = 0; i < 256; ++i) raw.scales[i] = static_cast<uint8_t>(i);
    const PackedMatrix w = Pack(raw);
    for (const ActivationMode mode : kModes) {
      const auto reference = BoundLinear::BindTo(Reference(FormOf(w.spec(), mode)), w, mode, 0, 0);
      const auto linear = BoundLinear::Bind(w, mode, 0, 0, GetParam());
      const Result expected = RunBound(*reference, x, 1, 0, GetParam(), pool);
      EXPECT_TRUE(RunBound(*linear, x, 1, 0, GetParam(), pool) == expected) << linear->kernel();
      EXPECT_TRUE(std::isfinite(expected.y[6]));
    }
  }
}

TEST_P(LinearOnIsa, NonFiniteActivationsPoisonTheirRowOnly) {
  ThreadPool pool(1);
  const Isa isa = GetParam();
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                    std::numeric_limits<float>::quiet_NaN()}) {
    for (ActivationMode mode : kModes) {
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

TEST_P(LinearOnIsa, SegmentSumsBeyondTheLimitPoison) {
  ThreadPool pool(1);
  const Isa isa = GetParam();
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

// From rounded to 2^-32 up to the limit and beyond.
TEST_P(LinearOnIsa, SegmentSumsOfEverySizeRoundAlike) {
  ThreadPool pool(1);
  const Isa isa = GetParam();
  constexpr int64_t kMostRows = 19;
  const PackedMatrix w = RandomMatrix(Q4Spec(33, 200), 11);
  int poisoned = 0;
  for (const ActivationMode mode : kModes) {
    for (float scale = 1e-12f; scale < 1e12f; scale *= 10) {
      std::vector<float> x = RandomFloats(kMostRows * 200, 12, scale);
      x[(kMostRows - 1) * 200 + 70] = std::numeric_limits<float>::infinity();
      const auto reference =
          BoundLinear::BindTo(Reference(FormOf(w.spec(), mode)), w, mode, 64, 100);
      const Result expected = RunBound(*reference, x, kMostRows, 64, isa, pool);
      for (const int64_t m : {int64_t{5}, int64_t{11}, kMostRows}) {
        const Result of_m = RunBound(*reference, x, m, 64, isa, pool);
        for (const LinearKernel* kernel : KernelsOf(FormOf(w.spec(), mode), isa)) {
          const auto linear = BoundLinear::BindTo(*kernel, w, mode, 64, 100);
          if (!linear.ok()) continue;
          EXPECT_TRUE(RunBound(*linear, x, m, 64, isa, pool) == of_m)
              << linear->kernel() << " scale=" << scale << " m=" << m;
        }
      }
      for (const int64_t rows : expected.poison) poisoned += rows > 0 && rows < 4 * 33;
    }
  }
  EXPECT_GT(poisoned, 0);  // some, not all, segments of a row
}

TEST_P(LinearOnIsa, EmptyMatricesGiveZeroSumsOrNothing) {
  ThreadPool pool(1);
  const Isa isa = GetParam();
  for (const ActivationMode mode : kModes) {
    const PackedMatrix no_cols = RandomMatrix(Q4Spec(16, 0), 1);
    const auto linear = BoundLinear::Bind(no_cols, mode, 64, 1, isa);
    ASSERT_TRUE(linear.ok()) << linear.status();
    EXPECT_EQ(RunBound(*linear, {}, 1, 64, isa, pool).sums, std::vector<int64_t>(16, 0));
    const PackedMatrix no_rows = RandomMatrix(Q4Spec(0, 64), 1);
    const auto nothing = BoundLinear::Bind(no_rows, mode, 0, 0, isa);
    ASSERT_TRUE(nothing.ok()) << nothing.status();
    EXPECT_TRUE(RunBound(*nothing, RandomFloats(64, 1), 1, 0, isa, pool).y.empty());
  }
}

}  // namespace
}  // namespace bitshard
