// CUDA's kernels on rows of f32: the prepared form by its definition, the CPU's bits where the CPU
// computes the same, and rows that do not depend on each other.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/thread_pool.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/registry/elementwise.h"
#include "kernels/registry/reduction.h"
#include "tests/kernels/cuda/linear_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CudaRows : public testing::Test {
 protected:
  void TearDown() override { ExpectNoFindings(); }
};

// Memory for a form of m rows.
struct DeviceForm {
  DeviceForm(int64_t m, int64_t cols, int64_t segment_cols, bool half, bool x) {
    TestGpu& gpu = TestGpu::Get();
    form.cols = cols;
    form.segment_cols = segment_cols;
    form.padded_cols = (cols + 63) / 64 * 64;
    if (half) {
      buffers.push_back(gpu.Empty(m * form.padded_cols * sizeof(uint16_t)));
      form.half = buffers.back().as<uint16_t>();
      buffers.push_back(gpu.Empty(m * form.segments() * sizeof(float)));
      form.scale = buffers.back().as<float>();
      buffers.push_back(gpu.Empty(m * form.padded_cols / 16 * sizeof(float)));
      form.run_sum = buffers.back().as<float>();
    }
    if (x) {
      buffers.push_back(gpu.Empty(m * cols * sizeof(float)));
      form.x = buffers.back().as<float>();
    }
  }
  DeviceActivations form;
  std::vector<DeviceBuffer> buffers;
};

template <typename T>
std::vector<T> DownloadFrom(const T* device, size_t count) {
  const DeviceBuffer view(const_cast<T*>(device), count * sizeof(T), [](void*) {});
  return TestGpu::Get().Download<T>(view, count);
}

::testing::AssertionResult SameFloats(const std::vector<float>& got,
                                      const std::vector<float>& want) {
  if (got.size() != want.size()) return testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (!SameBits(got[i], want[i]))
      return testing::AssertionFailure() << "[" << i << "] " << got[i] << " for " << want[i];
  }
  return testing::AssertionSuccess();
}

void ExpectForm(const DeviceForm& got, const HostActivations& want, const std::string& what) {
  EXPECT_EQ(DownloadFrom(got.form.half, want.half.size()), want.half) << what;
  EXPECT_TRUE(SameFloats(DownloadFrom(got.form.scale, want.scale.size()), want.scale)) << what;
  EXPECT_TRUE(SameFloats(DownloadFrom(got.form.run_sum, want.run_sum.size()), want.run_sum))
      << what;
  if (got.form.x != nullptr) {
    EXPECT_TRUE(SameFloats(DownloadFrom(got.form.x, want.x.size()), want.x)) << what;
  }
}

struct Shape {
  int64_t m, cols, segment_cols;
};
// Tails of pairs, runs, tiles and segments; segments that are no multiple of 16; one that is longer
// than the row.
constexpr Shape kShapes[] = {{1, 1, 0},    {2, 15, 0},   {3, 64, 0},   {2, 90, 0},    {1, 1040, 0},
                             {2, 640, 64}, {1, 200, 64}, {3, 100, 48}, {1, 272, 16},  {2, 120, 20},
                             {1, 77, 7},   {2, 40, 64},  {1, 33, 128}, {1, 2304, 128}};

std::string Name(const Shape& s) {
  return "m=" + std::to_string(s.m) + " cols=" + std::to_string(s.cols) + " segments of " +
         std::to_string(s.segment_cols);
}

TEST_F(CudaRows, PrepareGivesTheFormByItsDefinition) {
  TestGpu& gpu = TestGpu::Get();
  uint32_t seed = 1;
  for (const Shape& shape : kShapes) {
    for (const int gap : {0, 3}) {  // an odd stride takes the unaligned loads
      std::vector<float> values = RandomFloats(shape.m * shape.cols, ++seed, 3.0f);
      values[0] = 40000;  // one that dwarfs its segment
      const int64_t stride = shape.cols + gap;
      std::vector<float> spread(shape.m * stride);
      for (int64_t row = 0; row < shape.m; ++row)
        std::copy_n(values.begin() + row * shape.cols, shape.cols, spread.begin() + row * stride);
      const DeviceBuffer x = gpu.Upload(spread);
      DeviceForm form(shape.m, shape.cols, shape.segment_cols, true, gap != 0);
      CHECK_OK(gpu.kernels().Prepare(x.as<float>(), stride, shape.m, form.form, gpu.stream()));
      ExpectForm(form, HostActivations(values, shape.m, shape.cols, shape.segment_cols),
                 Name(shape));
    }
  }
}

TEST_F(CudaRows, PrepareMarksSegmentsThatAreZeroOrNotFinite) {
  TestGpu& gpu = TestGpu::Get();
  std::vector<float> values = RandomFloats(4 * 192, 5);
  std::fill_n(values.begin(), 64, 0.0f);         // row 0: a segment of zeros
  std::fill_n(values.begin() + 192, 192, 0.0f);  // row 1: all zeros
  values[2 * 192 + 70] = kNan;                   // row 2: a NaN in the second segment
  values[3 * 192 + 191] = -kInfinity;
  for (const int64_t segment_cols : {0, 64, 24}) {
    const DeviceBuffer x = gpu.Upload(values);
    DeviceForm form(4, 192, segment_cols, true, false);
    CHECK_OK(gpu.kernels().Prepare(x.as<float>(), 192, 4, form.form, gpu.stream()));
    ExpectForm(form, HostActivations(values, 4, 192, segment_cols), std::to_string(segment_cols));
  }
}

TEST_F(CudaRows, PreparedScalesStayNormal) {
  TestGpu& gpu = TestGpu::Get();
  const std::vector<float> largest = {3.0e38f, 0x1p-110f, 0x1p-112f, 0x1p-113f, 0x1p-149f};
  std::vector<float> values;
  for (const float l : largest) {
    values.push_back(l);
    for (int i = 1; i < 64; ++i) values.push_back(l * (static_cast<float>(i) / 64));
  }
  const DeviceBuffer x = gpu.Upload(values);
  const int64_t m = static_cast<int64_t>(largest.size());
  DeviceForm form(m, 64, 0, true, false);
  CHECK_OK(gpu.kernels().Prepare(x.as<float>(), 64, m, form.form, gpu.stream()));
  const std::vector<float> scale = DownloadFrom(form.form.scale, m);
  EXPECT_EQ(scale, (std::vector<float>{0x1p113f, 0x1p-124f, 0x1p-126f, 0x1p-126f, 0x1p-126f}));
  const std::vector<uint16_t> half = DownloadFrom(form.form.half, m * 64);
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t k = 0; k < 64; ++k) {
      const double exact = double{values[row * 64 + k]} / scale[row];
      const float got = F16ToF32(half[row * 64 + HostActivations::Place(k)]);
      EXPECT_NEAR(got, exact, std::max(std::fabs(exact) * 0x1p-11, 0x1p-25)) << row << " " << k;
    }
  }
}

TEST_F(CudaRows, PrepareCanGiveTheValuesAlone) {
  TestGpu& gpu = TestGpu::Get();
  const std::vector<float> values = RandomFloats(3 * 77, 8);
  const DeviceBuffer x = gpu.Upload(values);
  DeviceForm form(3, 77, 20, false, true);
  CHECK_OK(gpu.kernels().Prepare(x.as<float>(), 77, 3, form.form, gpu.stream()));
  EXPECT_EQ(DownloadFrom(form.form.x, values.size()), values);
}

// The f32 form may be the rows themselves.
TEST_F(CudaRows, PrepareLeavesItsInputWhereItIs) {
  TestGpu& gpu = TestGpu::Get();
  const std::vector<float> values = RandomFloats(2 * 128, 9);
  const DeviceBuffer x = gpu.Upload(values);
  DeviceForm form(2, 128, 64, true, false);
  form.form.x = x.as<float>();
  CHECK_OK(gpu.kernels().Prepare(x.as<float>(), 128, 2, form.form, gpu.stream()));
  ExpectForm(form, HostActivations(values, 2, 128, 64), "in place");
  EXPECT_FALSE(gpu.kernels().Prepare(x.as<float>(), 130, 2, form.form, gpu.stream()).ok());
}

std::vector<float> NormInDouble(const std::vector<float>& x, const std::vector<float>& weight,
                                float epsilon) {
  const size_t width = weight.size();
  std::vector<float> y;
  for (size_t row = 0; row < x.size() / width; ++row) {
    double sum = 0;
    for (size_t k = 0; k < width; ++k) sum += double{x[row * width + k]} * x[row * width + k];
    const double inverse = 1 / std::sqrt(sum / static_cast<double>(width) + epsilon);
    for (size_t k = 0; k < width; ++k)
      y.push_back(static_cast<float>(weight[k] * (x[row * width + k] * inverse)));
  }
  return y;
}

TEST_F(CudaRows, NormIsNearTheExactOneAndPreparesItsResult) {
  TestGpu& gpu = TestGpu::Get();
  constexpr float kEpsilon = 1e-5f;
  uint32_t seed = 20;
  for (const Shape& shape : kShapes) {
    const std::vector<float> values = RandomFloats(shape.m * shape.cols, ++seed, 2.0f);
    const std::vector<float> weights = RandomFloats(shape.cols, ++seed);
    const DeviceBuffer x = gpu.Upload(values), weight = gpu.Upload(weights);
    const DeviceBuffer y = gpu.Empty(values.size() * sizeof(float));
    DeviceForm with_y(shape.m, shape.cols, shape.segment_cols, true, false);
    DeviceForm alone(shape.m, shape.cols, shape.segment_cols, true, true);
    DeviceKernels::NormRows args;
    args.x = x.as<float>();
    args.weight = weight.as<float>();
    args.epsilon = kEpsilon;
    args.m = shape.m;
    args.width = shape.cols;
    args.y = y.as<float>();
    args.prepared = &with_y.form;
    CHECK_OK(gpu.kernels().Norm(args, gpu.stream()));
    const std::vector<float> got = gpu.Download<float>(y, values.size());
    const std::vector<float> exact = NormInDouble(values, weights, kEpsilon);
    for (size_t i = 0; i < got.size(); ++i) {
      // The sum's chains are at most 2 * cols / 512 + 16 long; then a division, a root, products.
      const double bound = (static_cast<double>(shape.cols) / 256 + 24) * 0x1p-24;
      EXPECT_NEAR(got[i], exact[i], bound * std::fabs(exact[i])) << Name(shape) << " " << i;
    }
    ExpectForm(with_y, HostActivations(got, shape.m, shape.cols, shape.segment_cols), Name(shape));
    args.y = nullptr;
    args.prepared = &alone.form;
    CHECK_OK(gpu.kernels().Norm(args, gpu.stream()));
    ExpectForm(alone, HostActivations(got, shape.m, shape.cols, shape.segment_cols), Name(shape));
    // A row alone, and in place.
    const std::vector<float> last(values.end() - shape.cols, values.end());
    const DeviceBuffer row = gpu.Upload(last);
    args.x = args.y = row.as<float>();
    args.m = 1;
    args.prepared = nullptr;
    CHECK_OK(gpu.kernels().Norm(args, gpu.stream()));
    EXPECT_TRUE(
        SameFloats(gpu.Download<float>(row, last.size()), {got.end() - shape.cols, got.end()}))
        << Name(shape);
  }
}

TEST_F(CudaRows, NormOfARowThatIsNotFiniteIsNan) {
  TestGpu& gpu = TestGpu::Get();
  std::vector<float> values = RandomFloats(3 * 64, 31);
  values[70] = kInfinity;
  const DeviceBuffer x = gpu.Upload(values), weight = gpu.Upload(RandomFloats(64, 32));
  const DeviceBuffer y = gpu.Empty(values.size() * sizeof(float));
  DeviceForm form(3, 64, 0, true, false);
  DeviceKernels::NormRows args;
  args.x = x.as<float>();
  args.weight = weight.as<float>();
  args.epsilon = 1e-6f;
  args.y = y.as<float>();
  args.prepared = &form.form;
  args.m = 3;
  args.width = 64;
  CHECK_OK(gpu.kernels().Norm(args, gpu.stream()));
  const std::vector<float> got = gpu.Download<float>(y, values.size());
  for (int row = 0; row < 3; ++row) EXPECT_EQ(std::isnan(got[row * 64 + 6]), row == 1) << row;
  const std::vector<float> scale = DownloadFrom(form.form.scale, 3);
  for (int row = 0; row < 3; ++row) EXPECT_EQ(std::isnan(scale[row]), row == 1) << row;
}

// Gates that take every way through exp.
std::vector<float> Gates(size_t count) {
  std::vector<float> gates = RandomFloats(count, 40, 4.0f);
  const float special[] = {0.0f,    -0.0f,  kInfinity, -kInfinity, kNan,    88.5f, -88.5f,  103.9f,
                           -103.9f, 200.0f, -200.0f,   1e-30f,     -1e-40f, 3e38f, 0.34657f};
  for (size_t i = 0; i < std::size(special) && i < count; ++i) gates[i * 3 % count] = special[i];
  return gates;
}

TEST_F(CudaRows, GatedGivesTheBitsOfTheCpuAndPreparesThem) {
  TestGpu& gpu = TestGpu::Get();
  ThreadPool pool(1);
  for (const Shape& shape : kShapes) {
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      const int64_t stride = 2 * shape.cols;
      const size_t count = static_cast<size_t>(shape.m * shape.cols);
      const std::vector<float> gates = Gates(count), ups = RandomFloats(count, 41);
      std::vector<float> both(shape.m * stride);  // gate | up
      for (int64_t row = 0; row < shape.m; ++row) {
        std::copy_n(gates.begin() + row * shape.cols, shape.cols, both.begin() + row * stride);
        std::copy_n(ups.begin() + row * shape.cols, shape.cols,
                    both.begin() + row * stride + shape.cols);
      }
      std::vector<float> want(count);
      GatedAct(activation, gates.data(), shape.cols, ups.data(), shape.cols, shape.m, shape.cols,
               want.data(), shape.cols, Isa::kScalar, pool);
      const DeviceBuffer in = gpu.Upload(both), y = gpu.Empty(count * sizeof(float));
      DeviceForm with_y(shape.m, shape.cols, shape.segment_cols, true, true);
      DeviceForm alone(shape.m, shape.cols, shape.segment_cols, true, true);
      DeviceKernels::GatedRows args;
      args.gate = in.as<float>();
      args.up = in.as<float>() + shape.cols;
      args.in_stride = stride;
      args.gelu = activation == Activation::kGeluTanh;
      args.y = y.as<float>();
      args.prepared = &with_y.form;
      args.m = shape.m;
      args.width = shape.cols;
      CHECK_OK(gpu.kernels().Gated(args, gpu.stream()));
      EXPECT_TRUE(SameFloats(gpu.Download<float>(y, count), want)) << Name(shape);
      const HostActivations host(want, shape.m, shape.cols, shape.segment_cols);
      ExpectForm(with_y, host, Name(shape));
      args.y = nullptr;
      args.prepared = &alone.form;
      CHECK_OK(gpu.kernels().Gated(args, gpu.stream()));
      ExpectForm(alone, host, Name(shape));
    }
  }
}

TEST_F(CudaRows, SumGivesTheBitsOfTheCpuAndMarksPoison) {
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
    DeviceKernels::SumRows args;
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

TEST_F(CudaRows, SumTakesRawBits) {
  TestGpu& gpu = TestGpu::Get();
  std::vector<float> want = RandomFloats(2 * 300, 60);
  want[7] = -0.0f;
  std::vector<int64_t> bits;
  for (const float v : want) bits.push_back(int64_t{std::bit_cast<uint32_t>(v)});
  const DeviceBuffer in = gpu.Upload(bits), x = gpu.Empty(want.size() * sizeof(float));
  DeviceKernels::SumRows args;
  args.in = in.as<int64_t>();
  args.raw_bits = true;
  args.x = x.as<float>();
  args.m = 2;
  args.width = 300;
  CHECK_OK(gpu.kernels().Sum(args, gpu.stream()));
  EXPECT_TRUE(SameFloats(gpu.Download<float>(x, want.size()), want));
}

TEST_F(CudaRows, AddAndGatherRows) {
  TestGpu& gpu = TestGpu::Get();
  const std::vector<float> a = RandomFloats(5 * 301, 70), b = RandomFloats(5 * 301, 71);
  std::vector<float> sum(a.size());
  std::transform(a.begin(), a.end(), b.begin(), sum.begin(),
                 [](float p, float q) { return p + q; });
  const DeviceBuffer on_a = gpu.Upload(a), on_b = gpu.Upload(b);
  CHECK_OK(gpu.kernels().Add(on_a.as<float>(), on_b.as<float>(), on_a.as<float>(), 5, 301,
                             gpu.stream()));
  EXPECT_EQ(gpu.Download<float>(on_a, a.size()), sum);

  const std::vector<int32_t> index = {4, 0, 0, 2, 3, 4, 1};
  std::vector<float> picked;
  for (const int32_t i : index) picked.insert(picked.end(), &b[i * 301], &b[i * 301] + 301);
  const DeviceBuffer on_index = gpu.Upload(index), out = gpu.Empty(picked.size() * sizeof(float));
  CHECK_OK(gpu.kernels().GatherRows(on_b.as<float>(), on_index.as<int32_t>(),
                                    static_cast<int64_t>(index.size()), 301, out.as<float>(),
                                    gpu.stream()));
  EXPECT_EQ(gpu.Download<float>(out, picked.size()), picked);
}

TEST_F(CudaRows, MarkStoresOneWord) {
  TestGpu& gpu = TestGpu::Get();
  const DeviceBuffer words = gpu.Upload(std::vector<uint64_t>{1, 2, 3});
  CHECK_OK(gpu.kernels().Mark(words.as<uint64_t>() + 1, 0x123456789abcdefull, gpu.stream()));
  EXPECT_EQ(gpu.Download<uint64_t>(words, 3), (std::vector<uint64_t>{1, 0x123456789abcdefull, 3}));
}

TEST_F(CudaRows, NoRowsLaunchNothing) {
  TestGpu& gpu = TestGpu::Get();
  DeviceForm form(0, 64, 0, true, false);
  CHECK_OK(gpu.kernels().Prepare(nullptr, 64, 0, form.form, gpu.stream()));
  CHECK_OK(gpu.kernels().Norm({.prepared = &form.form, .m = 0, .width = 64}, gpu.stream()));
  CHECK_OK(gpu.kernels().Gated({.prepared = &form.form, .m = 0, .width = 64}, gpu.stream()));
  CHECK_OK(gpu.kernels().Sum({.m = 0, .width = 64}, gpu.stream()));
  CHECK_OK(gpu.kernels().Add(nullptr, nullptr, nullptr, 0, 64, gpu.stream()));
  CHECK_OK(gpu.kernels().GatherRows(nullptr, nullptr, 0, 64, nullptr, gpu.stream()));
  gpu.Sync();
}

}  // namespace
}  // namespace bitshard
