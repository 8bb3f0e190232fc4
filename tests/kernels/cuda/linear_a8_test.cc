// y = W x on int8 activations: the bits of the CPU's a8, for every width, kind of scale, cut and
// batch, from f32 on.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/emu/options.h"
#include "kernels/registry/device_kernels.h"
#include "tests/kernels/cuda/a8_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

using CudaLinearA8 = DeviceKernelTest;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Every width with every group and kind of scale that formats have, and groups that cut activation
// groups.
std::vector<SpecForm> SweepForms() {
  std::vector<SpecForm> forms;
  for (int bits = 2; bits <= 8; ++bits) {
    for (const SpecForm& form : FormsOfWidth(bits, {32, 128, 0})) forms.push_back(form);
    forms.push_back({bits, 64, ScaleKind::kF16, ScaleOffset::kMin, 32});
    forms.push_back({bits, 48, ScaleKind::kBf16, ScaleOffset::kZero, 32});
    forms.push_back({bits, 16, ScaleKind::kBf16, ScaleOffset::kZero});
    forms.push_back({bits, 96, ScaleKind::kF16, ScaleOffset::kZero, 64});
  }
  return forms;
}

struct Shape {
  uint64_t n, k;
};
// Tails of rows, columns, runs, groups and tiles; fewer tiles than warps, and more.
constexpr Shape kShapes[] = {{24, 208}, {33, 320}, {16, 64},   {1, 90},
                             {31, 15},  {40, 576}, {19, 1040}, {48, 32}};

TEST_F(CudaLinearA8, EveryWidthGroupAndKindGivesTheBitsOfTheCpu) {
  constexpr int64_t kTokens[] = {1, 8, 9, 16, 3, 33};
  uint32_t seed = 0;
  for (const SpecForm& form : SweepForms()) {
    // Scattered, so that every form meets every shape over the widths.
    const Shape& s = kShapes[(++seed * 2654435761u >> 8) % std::size(kShapes)];
    const PackedMatrix w = RandomMatrix(IntSpec(s.n, s.k, form), seed);
    const int64_t m = kTokens[(seed * 2246822519u >> 8) % std::size(kTokens)];
    ASSERT_TRUE(GivesTheBitsOfTheCpu(w, RandomRows(m, w.cols(), seed))) << "seed " << seed;
  }
}

// One of each kernel for few tokens.
std::vector<SpecForm> FormsOfEachKernel() {
  return {{4, 64},                                             // pairs, halves
          {5, 32, ScaleKind::kSuperU8Min},                     // pairs, any scales
          {6, 16, ScaleKind::kSuperS8},                        // runs
          {3, 32, ScaleKind::kBf16, ScaleOffset::kZero, 16}};  // any
}

TEST_F(CudaLinearA8, ARowsBitsDoNotDependOnTheOthers) {
  uint32_t seed = 1000;
  for (const SpecForm& form : FormsOfEachKernel()) {
    const PackedMatrix w = RandomMatrix(IntSpec(20, 160, form), ++seed);
    const F32Rows all = RandomRows(70, 160, seed);
    const LinearResult want = RunOnCpu(w, all);
    for (int64_t m = 1; m <= 70; ++m) {
      const int64_t first = (70 - m) / 2;
      const LinearResult got = RunOnDevice(w, Some(all, first, m));
      for (int64_t i = 0; i < m * w.rows(); ++i) {
        ASSERT_TRUE(SameBits(got.y[i], want.y[first * w.rows() + i]))
            << w.spec().Describe() << " m=" << m << " token " << i / w.rows();
      }
    }
  }
}

// They have a kernel of their own.
TEST_F(CudaLinearA8, ManyTokensGiveTheBitsOfTheCpu) {
  using Kind = ScaleKind;
  uint32_t seed = 2000;
  for (int bits = 2; bits <= 8; ++bits) {
    const bool odd = bits % 2 == 1;
    for (const SpecForm& form :
         std::vector<SpecForm>{{bits, 128, odd ? Kind::kBf16 : Kind::kF16,
                                odd ? ScaleOffset::kZero : ScaleOffset::kMin},
                               {bits, 32, Kind::kSuperU8Min}}) {
      const PackedMatrix w = RandomMatrix(IntSpec(odd ? 150 : 24, odd ? 90 : 400, form), ++seed);
      for (const int64_t segment : {0, odd ? 32 : 64}) {
        const int64_t m = 256 + 21 * bits;  // 257 to 319 and a whole chunk
        EXPECT_TRUE(
            GivesTheBitsOfTheCpu(w, RandomRows(bits == 8 ? 256 : m, w.cols(), seed, segment)));
      }
    }
  }
}

TEST_F(CudaLinearA8, SegmentsGiveTheSumsOfTheCpu) {
  uint32_t seed = 3000;
  for (const int64_t segment : {64, 32, 16, 80, 96, 1024}) {
    for (const NamedSpec& named : AllSpecs(21, 400)) {
      // A third of them for each: all over the seeds.
      if (named.spec.type != PackedSpec::Type::kInt || ++seed % 3 != 0) continue;
      const PackedMatrix w = RandomMatrix(named.spec, seed);
      const int64_t m = seed % 2 == 0 ? 5 : 17;
      ASSERT_TRUE(GivesTheBitsOfTheCpu(w, RandomRows(m, 400, seed, segment))) << named.name;
    }
  }
}

TEST_F(CudaLinearA8, SumsAddUpToThoseOfTheCpuOverAnyCut) {
  constexpr int64_t kCols = 600, kTokens = 9;
  uint32_t seed = 4000;
  for (const SpecForm& form : FormsOfEachKernel()) {
    for (const std::vector<int64_t>& cut :
         std::vector<std::vector<int64_t>>{{0, 320, kCols}, {0, 0, 192, kCols}}) {
      const RawMatrix raw = RandomRaw(IntSpec(24, kCols, form), ++seed);
      const F32Rows all = RandomRows(kTokens, kCols, seed, 64);
      const LinearResult want = RunOnCpu(Pack(raw), all);
      std::vector<int64_t> sums(want.sums.size(), 0);
      for (size_t rank = 0; rank + 1 < cut.size(); ++rank) {
        const int64_t begin = cut[rank], end = cut[rank + 1];
        F32Rows local = {{}, kTokens, end - begin, 64};
        for (auto row = all.x.begin(); row != all.x.end(); row += kCols)
          local.x.insert(local.x.end(), row + begin, row + end);
        const LinearResult got = RunOnDevice(
            Pack(CutColumns(raw, static_cast<uint64_t>(begin), static_cast<uint64_t>(end))), local);
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += got.sums[i];
      }
      EXPECT_EQ(sums, want.sums) << raw.spec.Describe();
    }
  }
}

TEST_F(CudaLinearA8, ACutOfTheRowsChangesNoBit) {
  uint32_t seed = 5000;
  for (const SpecForm& form : FormsOfEachKernel()) {
    const RawMatrix raw = RandomRaw(IntSpec(53, 336, form), ++seed);
    const F32Rows x = RandomRows(9, 336, seed);
    const LinearResult whole = RunOnCpu(Pack(raw), x);
    for (const auto& [begin, end] : {std::pair<uint64_t, uint64_t>{0, 20}, {20, 53}, {7, 8}}) {
      const LinearResult part = RunOnDevice(Pack(CutRows(raw, begin, end)), x);
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

// All codes and all activations at their ends: |I| is as large as it can be.
TEST_F(CudaLinearA8, TheLargestSumsAreExact) {
  for (const int zero : {0, 255}) {
    PackedSpec spec = IntSpec(16, 64, {8, 32, ScaleKind::kF16, ScaleOffset::kZero});
    RawMatrix raw = RandomRaw(spec, 1);
    std::fill(raw.codes.begin(), raw.codes.end(), static_cast<uint8_t>(255 - zero));
    std::fill(raw.zeros.begin(), raw.zeros.end(), static_cast<uint8_t>(zero));
    F32Rows x = {std::vector<float>(2 * 64, 1.5f), 2, 64};
    for (int k = 0; k < 64; ++k) x.x[k] = -1.5f;
    EXPECT_TRUE(GivesTheBitsOfTheCpu(Pack(raw), x));
  }
}

// Members of one launch, and of several: other widths, kinds of scales and cells; what has no
// integers reads fp16.
TEST_F(CudaLinearA8, MatricesTogetherGiveTheBitsOfEachAlone) {
  const uint64_t k = 320;
  std::vector<PackedMatrix> matrices;
  for (const PackedSpec& spec :
       {Q4Spec(40, k), Q8Spec(17, k), Q4Spec(1, k), IntSpec(33, k, {4, 32, ScaleKind::kF32}),
        PackedSpec{.rows = 20, .cols = k, .type = PackedSpec::Type::kBf16}, Q4Spec(0, k),
        IntSpec(16, k, {4, 16}), IntSpec(16, k, {4, 64, ScaleKind::kBf16, ScaleOffset::kZero})}) {
    matrices.push_back(RandomMatrix(spec, static_cast<uint32_t>(matrices.size())));
  }
  std::vector<const PackedMatrix*> members;
  for (const PackedMatrix& matrix : matrices) members.push_back(&matrix);
  const std::vector<float> bias = RandomFloats(40, 8);
  for (const int64_t m : {1, 9, 33}) {
    const F32Rows rows = RandomRows(m, k, 3);
    const HostActivations half(rows.x, m, k, 0);
    const UploadedActivations uploaded(half);
    const DeviceA8 x(rows);
    DeviceActivations both = uploaded.get();
    both.a8 = x.form.a8;
    const std::vector<LinearResult> together = RunLinear(members, both, m, 1, bias, 5);
    for (size_t i = 0; i < members.size(); ++i) {
      const bool integers = matrices[i].spec().type == PackedSpec::Type::kInt;
      LinearResult want = integers ? RunOnCpu(matrices[i], rows) : RunLinear(matrices[i], half);
      for (size_t at = 0; at < want.y.size(); ++at)
        want.y[at] += bias[at % static_cast<size_t>(matrices[i].rows())];
      EXPECT_TRUE(SameBits(together[i], want)) << matrices[i].spec().Describe() << " m=" << m;
    }
  }
}

// The threads of a block may take turns in any order, and copies may land early or late.
TEST_F(CudaLinearA8, TheOrderOfThreadsChangesNoBit) {
  const emu::Options before = emu::GetOptions();
  uint32_t seed = 6000;
  for (const SpecForm& form : FormsOfEachKernel()) {
    for (const int64_t m : {9, 257}) {
      const PackedMatrix w = RandomMatrix(IntSpec(40, 320, form), ++seed);
      const F32Rows x = RandomRows(m, 320, seed);
      for (const emu::Order order : {emu::Order::kBackward, emu::Order::kShuffled}) {
        emu::Options options = before;
        options.order = order;
        options.copies_land_early = order == emu::Order::kShuffled;
        emu::SetOptions(options);
        EXPECT_TRUE(GivesTheBitsOfTheCpu(w, x));
      }
      emu::SetOptions(before);
    }
  }
}

TEST_F(CudaLinearA8, NonFiniteActivationsSpoilTheirRowOnly) {
  uint32_t seed = 7000;
  for (const SpecForm& form : FormsOfEachKernel()) {
    for (const float bad : {kInfinity, kNan}) {
      const PackedMatrix w = RandomMatrix(IntSpec(17, 128, form), ++seed);
      for (const int64_t segment : {0, 64}) {
        F32Rows x = RandomRows(3, 128, seed, segment);
        x.x[128 + 70] = bad;
        const LinearResult got = RunOnDevice(w, x);
        EXPECT_TRUE(SameBits(got, RunOnCpu(w, x))) << w.spec().Describe();
        if (segment != 0) {
          EXPECT_EQ(got.poison, (std::vector<int64_t>{0, 17, 0})) << w.spec().Describe();
          continue;
        }
        for (int i = 0; i < 51; ++i) EXPECT_EQ(std::isnan(got.y[i]), i / 17 == 1) << i;
      }
    }
  }
}

// What a record holds, as device_rows.h says it.
void ExpectForm(const std::vector<uint8_t>& got, const F32Rows& rows, const std::string& what) {
  ThreadPool pool(1);
  const PreparedActivations want = OnCpu(rows, pool);
  const int64_t padded = want.padded_cols();
  const int64_t segment = rows.segment_cols == 0 ? rows.cols : rows.segment_cols;
  for (int64_t row = 0; row < rows.m; ++row) {
    for (int64_t run = 0; run < padded / 16; ++run) {
      const uint8_t* const record = got.data() + (row * (padded / 64) + run / 4) * kA8RecordBytes;
      const auto at = [record]<typename T>(int64_t byte, T) {
        T value;
        std::memcpy(&value, record + byte, sizeof(value));
        return value;
      };
      const int64_t j = run % 4;
      for (int i = 0; i < 16; ++i) {
        ASSERT_EQ(at(i / 4 * 16 + 4 * j + i % 4, int8_t{}), want.a8(row)[16 * run + i])
            << what << " row " << row << " run " << run << " place " << i;
      }
      const int64_t in_segment = run * 16 % segment, of_segment = run * 16 / segment;
      if (run * 16 < rows.cols) {
        const int64_t group = of_segment * want.a8_groups_per_segment() + in_segment / kA8Group;
        ASSERT_TRUE(SameBits(at(64 + j % 2 * 16 + j / 2 * 4, float{}), want.a8_scales(row)[group]))
            << what << " row " << row << " run " << run;
      }
      ASSERT_EQ(at(88 + 2 * j, int16_t{}), want.a8_run_sums(row)[run])
          << what << " row " << row << " run " << run;
      if (segment % 32 == 0 || segment >= rows.cols) {
        ASSERT_EQ(at(72 + j / 2 * 4, int32_t{}),
                  want.a8_run_sums(row)[run / 2 * 2] + want.a8_run_sums(row)[run / 2 * 2 + 1])
            << what << " row " << row << " run " << run;
      }
    }
  }
}

constexpr struct {
  int64_t m, cols, segment_cols;
} kForms[] = {{1, 1, 0},    {2, 15, 0},     {3, 64, 0},  {2, 90, 0},   {1, 1040, 0},
              {2, 640, 64}, {1, 200, 64},   {3, 96, 48}, {1, 272, 16}, {2, 40, 64},
              {1, 33, 128}, {1, 2304, 128}, {2, 240, 80}};

// Values that take every way: zeros, one that dwarfs its group, groups whose scale is subnormal or
// just not, no numbers.
std::vector<float> Values(int64_t m, int64_t cols, uint32_t seed) {
  std::vector<float> values = RandomFloats(static_cast<size_t>(m * cols), seed, 3.0f);
  values[0] = 40000;
  const auto fill = [&](int64_t first, float factor) {
    for (int64_t i = first; i < first + 32 && i < m * cols; ++i) values[i] *= factor;
  };
  fill(32, 0.0f);
  fill(64, 0x1p-140f);
  fill(96, 0x1p-119f);
  if (m * cols > 150) values[150] = kNan;
  if (m * cols > 190) values[190] = -kInfinity;
  return values;
}

TEST_F(CudaLinearA8, PrepareNormAndGatedMakeTheFormOfTheCpu) {
  TestGpu& gpu = TestGpu::Get();
  uint32_t seed = 8000;
  for (const auto& [m, cols, segment_cols] : kForms) {
    const F32Rows rows = {Values(m, cols, ++seed), m, cols, segment_cols};
    const std::string name = "m=" + std::to_string(m) + " cols=" + std::to_string(cols) +
                             " segments of " + std::to_string(segment_cols);
    ExpectForm(DeviceA8(rows).Download(), rows, "prepare " + name);

    const std::vector<float> x = RandomFloats(static_cast<size_t>(m * cols), seed, 2.0f);
    const DeviceBuffer in = gpu.Upload(x), y = gpu.Empty(x.size() * sizeof(float));
    const DeviceBuffer weight = gpu.Upload(RandomFloats(static_cast<size_t>(cols), seed));
    DeviceNorm norm;
    norm.x = in.as<float>();
    norm.weight = weight.as<float>();
    norm.epsilon = 1e-5f;
    norm.m = m;
    norm.width = cols;
    DeviceGated gated;
    gated.gate = norm.x;
    gated.up = norm.x;
    gated.in_stride = cols;
    gated.m = m;
    gated.width = cols;
    for (const bool with_y : {true, false}) {
      const DeviceA8 of_norm(m, cols, segment_cols), of_gated(m, cols, segment_cols);
      norm.y = gated.y = y.as<float>();
      norm.prepared = with_y ? &of_norm.form : nullptr;
      gated.prepared = with_y ? &of_gated.form : nullptr;
      CHECK_OK(gpu.kernels().Norm(norm, gpu.stream()));
      const F32Rows normed = {gpu.Download<float>(y, x.size()), m, cols, segment_cols};
      CHECK_OK(gpu.kernels().Gated(gated, gpu.stream()));
      const F32Rows acted = {gpu.Download<float>(y, x.size()), m, cols, segment_cols};
      if (!with_y) {
        norm.y = gated.y = nullptr;
        norm.prepared = &of_norm.form;
        gated.prepared = &of_gated.form;
        CHECK_OK(gpu.kernels().Norm(norm, gpu.stream()));
        CHECK_OK(gpu.kernels().Gated(gated, gpu.stream()));
        gpu.Sync();
      }
      ExpectForm(of_norm.Download(), normed, "norm " + name);
      ExpectForm(of_gated.Download(), acted, "gated " + name);
    }
  }
}

TEST_F(CudaLinearA8, TheChoiceNamesItsKernelAndWhyNot) {
  const auto& kernels = TestGpu::Get().kernels();
  const auto fast = kernels.ChooseLinear(Q4Spec(16, 128), 64, ActivationMode::kA8);
  ASSERT_TRUE(fast.ok()) << fast.status();
  EXPECT_EQ(fast->kernel, "cuda/linear_w4_a8");
  EXPECT_EQ(fast->activations, "a8");
  EXPECT_TRUE(fast->refused.empty());
  EXPECT_TRUE(kernels.ReadsA8(Q4Spec(16, 128), 64, ActivationMode::kA8));
  EXPECT_FALSE(kernels.ReadsA8(Q4Spec(16, 128), 64, ActivationMode::kA16));
  const auto plain = kernels.ChooseLinear(Q4Spec(16, 128), 24, ActivationMode::kA8);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->kernel, "cuda/linear_plain");
  EXPECT_EQ(plain->activations, "f16");
  EXPECT_NE(RefusalText(plain->refused)
                .find("cuda/linear_w4_a8: segments of 24 columns are no multiple of 16"),
            std::string::npos);
  EXPECT_FALSE(kernels.ReadsA8(Q4Spec(16, 128), 24, ActivationMode::kA8));
  const PackedSpec bf16 = {.rows = 1, .cols = 1, .type = PackedSpec::Type::kBf16};
  EXPECT_EQ(kernels.ChooseLinear(bf16, 0, ActivationMode::kA8)->kernel, "cuda/linear_bf16");
}

TEST_F(CudaLinearA8, WhatDoesNotFitTogetherIsRefused) {
  TestGpu& gpu = TestGpu::Get();
  const UploadedMatrix w(RandomMatrix(Q4Spec(16, 128), 1));
  const UploadedMatrix dense(
      RandomMatrix({.rows = 16, .cols = 128, .type = PackedSpec::Type::kBf16}, 1));
  const DeviceA8 x(RandomRows(1, 128, 1));
  const DeviceBuffer out = gpu.Empty(16 * sizeof(float));
  DeviceLinear member;
  member.w = &w.get();
  member.y = out.as<float>();
  member.stride = 16;
  CHECK_OK(gpu.kernels().Linear({member}, x.form, 1, gpu.stream()));
  member.w = &dense.get();
  const absl::Status no_half = gpu.kernels().Linear({member}, x.form, 1, gpu.stream());
  EXPECT_EQ(no_half.code(), absl::StatusCode::kInvalidArgument) << no_half;
  EXPECT_NE(no_half.message().find("lack the form"), std::string::npos) << no_half;
  DeviceMatrix wide = w.get();  // only its shape is looked at
  wide.spec.cols = 16 * 65535 + 1;
  DeviceActivations wide_x = x.form;
  wide_x.cols = 16 * 65535 + 1;
  wide_x.padded_cols = 16 * 65536;
  member.w = &wide;
  const absl::Status too_wide = gpu.kernels().Linear({member}, wide_x, 1, gpu.stream());
  EXPECT_EQ(too_wide.code(), absl::StatusCode::kInvalidArgument) << too_wide;
  DeviceActivations odd = x.form;
  odd.segment_cols = 24;
  const DeviceBuffer values = gpu.Upload(RandomFloats(128, 1));
  const absl::Status segments =
      gpu.kernels().Prepare(values.as<float>(), 128, 1, odd, gpu.stream());
  EXPECT_EQ(segments.code(), absl::StatusCode::kInvalidArgument) << segments;
  gpu.Sync();
}

}  // namespace
}  // namespace bitshard
