// Sums of ranks on CUDA: the CPU's bits, marks of poison, and the norm that follows in the same
// launch.
#include <bit>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include <gtest/gtest.h>

#include "kernels/cuda/emu/counters.h"
#include "kernels/registry/reduction.h"
#include "tests/kernels/cuda/rows_on_device.h"

namespace bitshard {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CudaSums : public testing::Test {
 protected:
  void TearDown() override { ExpectNoFindings(); }
};

TEST_F(CudaSums, SumGivesTheBitsOfTheCpuAndMarksPoison) {
  TestGpu& gpu = TestGpu::Get();
  constexpr int64_t kRows = 3;
  for (const int64_t width : {1, 255, 600}) {
    std::vector<int64_t> sums;
    for (const float v : RandomFloats(kRows * width, 50, 1000.0f)) sums.push_back(F32ToFixed(v));
    sums[0] = std::numeric_limits<int64_t>::min() + 1;
    sums.back() = (int64_t{1} << 53) + 1;  // rounds in double
    const std::vector<float> bias = RandomFloats(width, 51);
    const std::vector<float> residual = RandomFloats(kRows * width, 52);
    std::vector<float> want;
    for (int64_t i = 0; i < kRows * width; ++i) {
      want.push_back(i / width == 1 ? kNan : residual[i] + (FixedToF32(sums[i]) + bias[i % width]));
    }
    const DeviceBuffer in = gpu.Upload(sums), on_bias = gpu.Upload(bias);
    const DeviceBuffer x = gpu.Upload(residual);
    const DeviceBuffer poison = gpu.Upload(std::vector<int64_t>{0, 2, 0});
    const DeviceBuffer poisoned = gpu.Upload(std::vector<uint8_t>{0, 0, 1});
    DeviceSum args;
    args.in = in.as<int64_t>();
    args.poison = poison.as<int64_t>();
    args.bias = on_bias.as<float>();
    args.residual = args.x = x.as<float>();  // in place
    args.poisoned = poisoned.as<uint8_t>();
    args.m = kRows;
    args.width = width;
    CHECK_OK(gpu.kernels().Sum(args, gpu.stream()));
    EXPECT_TRUE(SameFloats(gpu.Download<float>(x, want.size()), want)) << width;
    EXPECT_EQ(gpu.Download<uint8_t>(poisoned, kRows), (std::vector<uint8_t>{0, 1, 1}));
  }
}

TEST_F(CudaSums, SumTakesFloatsAndMarksRowsThatAreNotFinite) {
  TestGpu& gpu = TestGpu::Get();
  constexpr int64_t kRows = 4, kWidth = 600;
  std::vector<float> sums = RandomFloats(kRows * kWidth, 53, 1000.0f);
  sums[1 * kWidth + 1] = -std::numeric_limits<float>::infinity();
  sums[2 * kWidth + 299] = sums[2 * kWidth + 599] = kNan;
  const std::vector<float> bias = RandomFloats(kWidth, 54);
  const std::vector<float> residual = RandomFloats(kRows * kWidth, 55);
  std::vector<float> want;
  for (int64_t i = 0; i < kRows * kWidth; ++i)
    want.push_back(residual[i] + (sums[i] + bias[i % kWidth]));
  const DeviceBuffer in = gpu.Upload(sums), on_bias = gpu.Upload(bias);
  const DeviceBuffer x = gpu.Upload(residual);
  const DeviceBuffer poisoned = gpu.Upload(std::vector<uint8_t>{0, 0, 0, 1});
  DeviceSum args;
  args.floats = in.as<float>();
  args.bias = on_bias.as<float>();
  args.residual = args.x = x.as<float>();  // in place
  args.poisoned = poisoned.as<uint8_t>();
  args.m = kRows;
  args.width = kWidth;
  CHECK_OK(gpu.kernels().Sum(args, gpu.stream()));
  EXPECT_TRUE(SameFloats(gpu.Download<float>(x, want.size()), want));
  EXPECT_EQ(gpu.Download<uint8_t>(poisoned, kRows), (std::vector<uint8_t>{0, 1, 1, 1}));
  args.floats = nullptr;
  EXPECT_EQ(gpu.kernels().Sum(args, gpu.stream()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CudaSums, SumTakesRawBits) {
  TestGpu& gpu = TestGpu::Get();
  std::vector<float> want = RandomFloats(2 * 300, 60);
  want[7] = -0.0f;
  std::vector<int64_t> bits;
  for (const float v : want) bits.push_back(int64_t{std::bit_cast<uint32_t>(v)});
  const DeviceBuffer in = gpu.Upload(bits), x = gpu.Empty(want.size() * sizeof(float));
  DeviceSum args;
  args.in = in.as<int64_t>();
  args.raw_bits = true;
  args.x = x.as<float>();
  args.m = 2;
  args.width = 300;
  CHECK_OK(gpu.kernels().Sum(args, gpu.stream()));
  EXPECT_TRUE(SameFloats(gpu.Download<float>(x, want.size()), want));
}

// One word, by one thread of the launch, wherever the rows' work lies.
TEST_F(CudaSums, TellHowFarTheStreamHasCome) {
  TestGpu& gpu = TestGpu::Get();
  constexpr int64_t kRows = 3, kWidth = 600;
  const DeviceBuffer floats = gpu.Upload(RandomFloats(kRows * kWidth, 61));
  const DeviceBuffer weight = gpu.Upload(RandomFloats(kWidth, 62));
  const DeviceBuffer x = gpu.Empty(kRows * kWidth * sizeof(float));
  const DeviceBuffer y = gpu.Empty(kRows * kWidth * sizeof(float));
  const DeviceBuffer words = gpu.Upload(std::vector<uint64_t>{1, 2, 3});
  const DeviceBuffer poisoned = gpu.Upload(std::vector<uint8_t>(kRows, 0));
  DeviceSum sum;
  sum.floats = floats.as<float>();
  sum.x = x.as<float>();
  sum.poisoned = poisoned.as<uint8_t>();
  sum.progress = words.as<uint64_t>() + 1;
  sum.mark = 0x123456789abcdefull;
  sum.m = kRows;
  sum.width = kWidth;
  emu::ResetCounters();
  CHECK_OK(gpu.kernels().Sum(sum, gpu.stream()));
  EXPECT_EQ(gpu.Download<uint64_t>(words, 3), (std::vector<uint64_t>{1, sum.mark, 3}));
  DeviceNorm norm;
  norm.x = x.as<float>();
  norm.weight = weight.as<float>();
  norm.y = y.as<float>();
  norm.m = kRows;
  norm.width = kWidth;
  norm.sum = &sum;
  sum.mark = 99;
  CHECK_OK(gpu.kernels().Norm(norm, gpu.stream()));
  EXPECT_EQ(gpu.Download<uint64_t>(words, 3), (std::vector<uint64_t>{1, 99, 3}));
  if (const emu::Counters counters = emu::GetCounters(); counters.launches > 0) {
    EXPECT_EQ(counters.launches, 2) << "no launch for the word";
  }
}

// Sum and Norm in one launch: the bits of two.
TEST_F(CudaSums, NormOfASumIsThatOfTwoLaunches) {
  TestGpu& gpu = TestGpu::Get();
  uint32_t seed = 90;
  for (const Shape& shape : kShapes) {
    const size_t count = static_cast<size_t>(shape.m * shape.cols);
    std::vector<int64_t> fixed, raw;
    const std::vector<float> floats = RandomFloats(count, ++seed, 1000.0f);
    for (const float v : floats) {
      fixed.push_back(F32ToFixed(v));
      raw.push_back(int64_t{std::bit_cast<uint32_t>(v)});
    }
    std::vector<int64_t> poisons(static_cast<size_t>(shape.m), 0);
    poisons.back() = shape.m > 1 ? 3 : 0;
    const DeviceBuffer on_fixed = gpu.Upload(fixed), on_raw = gpu.Upload(raw);
    const DeviceBuffer on_floats = gpu.Upload(floats), poison = gpu.Upload(poisons);
    const DeviceBuffer bias = gpu.Upload(RandomFloats(shape.cols, ++seed));
    const DeviceBuffer weight = gpu.Upload(RandomFloats(shape.cols, ++seed));
    const std::vector<float> residuals = RandomFloats(count, ++seed);
    DeviceSum sums[3];
    sums[0].in = on_fixed.as<int64_t>();
    sums[0].poison = poison.as<int64_t>();
    sums[0].bias = bias.as<float>();
    sums[1].in = on_raw.as<int64_t>();
    sums[1].raw_bits = true;
    sums[2].floats = on_floats.as<float>();
    for (DeviceSum& sum : sums) {
      const std::string name = absl::StrCat(Name(shape), " sum ", &sum - sums);
      sum.m = shape.m;
      sum.width = shape.cols;
      std::vector<float> x[2], y[2];
      std::vector<uint8_t> marks[2];
      DeviceForm forms[2] = {{shape.m, shape.cols, shape.segment_cols, true, true},
                             {shape.m, shape.cols, shape.segment_cols, true, true}};
      DeviceForm alone(shape.m, shape.cols, shape.segment_cols, true, true);
      for (const bool together : {false, true}) {
        const DeviceBuffer on_x = gpu.Upload(residuals), on_y = gpu.Empty(count * sizeof(float));
        const DeviceBuffer marked = gpu.Upload(std::vector<uint8_t>(poisons.size(), 0));
        sum.x = on_x.as<float>();
        sum.residual = sum.raw_bits ? nullptr : sum.x;  // in place
        sum.poisoned = marked.as<uint8_t>();
        DeviceNorm norm;
        norm.x = sum.x;
        norm.weight = weight.as<float>();
        norm.epsilon = 1e-5f;
        norm.y = on_y.as<float>();
        norm.prepared = &forms[together].form;
        norm.m = shape.m;
        norm.width = shape.cols;
        if (together) {
          norm.sum = &sum;
        } else {
          CHECK_OK(gpu.kernels().Sum(sum, gpu.stream()));
        }
        CHECK_OK(gpu.kernels().Norm(norm, gpu.stream()));
        x[together] = gpu.Download<float>(on_x, count);
        y[together] = gpu.Download<float>(on_y, count);
        marks[together] = gpu.Download<uint8_t>(marked, poisons.size());
        if (!together) continue;
        // Its form alone, of a sum that is made anew.
        const DeviceBuffer again = gpu.Upload(residuals);
        sum.x = again.as<float>();
        if (sum.residual != nullptr) sum.residual = sum.x;
        norm.x = sum.x;
        norm.y = nullptr;
        norm.prepared = &alone.form;
        CHECK_OK(gpu.kernels().Norm(norm, gpu.stream()));
        norm.x = on_y.as<float>();
        EXPECT_EQ(gpu.kernels().Norm(norm, gpu.stream()).code(),
                  absl::StatusCode::kInvalidArgument);
      }
      EXPECT_TRUE(SameFloats(x[1], x[0])) << name;
      EXPECT_TRUE(SameFloats(y[1], y[0])) << name;
      EXPECT_EQ(marks[1], marks[0]) << name;
      EXPECT_EQ(marks[1].back(), sum.poison != nullptr && shape.m > 1) << name;
      const HostActivations host(y[0], shape.m, shape.cols, shape.segment_cols);
      ExpectForm(forms[0], host, name);
      ExpectForm(forms[1], host, name);
      ExpectForm(alone, host, name);
    }
  }
}

}  // namespace
}  // namespace bitshard
