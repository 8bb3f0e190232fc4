// CUDA's kernels on rows of f32: the prepared form by its definition, the CPU's bits where the CPU
// computes the same, and rows that do not depend on each other.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/thread_pool.h"
#include "kernels/cuda/emu/counters.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/registry/elementwise.h"
#include "tests/kernels/cuda/rows_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class CudaRows : public testing::Test {
 protected:
  void TearDown() override { ExpectNoFindings(); }
};

TEST_F(CudaRows, PrepareGivesTheFormByItsDefinition) {
  TestGpu& gpu = TestGpu::Get();
  uint32_t seed = 1;
  for (const Shape& shape : kShapes) {
    for (const int gap : {0, 3}) {  // an odd stride takes the unaligned loads
      std::vector<float> values = RandomFloats(shape.m * shape.cols, ++seed, 3.0f);
      // One that dwarfs its segment and the one before it.
      values[shape.segment_cols < shape.cols ? shape.segment_cols : 0] = 40000;
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
    DeviceNorm args;
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
  DeviceNorm args;
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
      DeviceGated args;
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

// The counts behind a matrix's sums, whichever kernel makes its form; those beside them stay.
TEST_F(CudaRows, CountsAreClearedWithTheForm) {
  TestGpu& gpu = TestGpu::Get();
  constexpr int64_t kRows = 3, kCols = 640;
  const DeviceBuffer in = gpu.Upload(RandomFloats(kRows * kCols, 70));
  const DeviceBuffer y = gpu.Empty(kRows * kCols * sizeof(float));
  const DeviceBuffer records = gpu.Empty(kRows * kCols / 64 * kA8RecordBytes);
  const std::vector<int64_t> dirty = {7, 1, -1, 5, 7}, cleared = {7, 0, 0, 0, 7};
  for (const auto& [segment_cols, half, a8] : {std::tuple(0, true, false),
                                               {64, true, false},
                                               {24, true, false},
                                               {0, false, true},
                                               {64, false, true},
                                               {64, true, true}}) {
    for (const auto* const way : {"prepare", "gated", "gated with y"}) {
      DeviceForm form(kRows, kCols, segment_cols, half, false);
      if (a8) form.form.a8 = records.as<uint8_t>();
      const DeviceBuffer counts = gpu.Upload(dirty);
      form.form.counts = counts.as<int64_t>() + 1;
      DeviceGated gated;
      gated.gate = gated.up = in.as<float>();
      gated.in_stride = gated.width = kCols;
      gated.y = way == std::string("gated with y") ? y.as<float>() : nullptr;
      gated.prepared = &form.form;
      gated.m = kRows;
      CHECK_OK(way == std::string("prepare")
                   ? gpu.kernels().Prepare(in.as<float>(), kCols, kRows, form.form, gpu.stream())
                   : gpu.kernels().Gated(gated, gpu.stream()));
      EXPECT_EQ(gpu.Download<int64_t>(counts, dirty.size()), cleared)
          << way << " " << segment_cols << " " << half << a8;
    }
  }
  const DeviceBuffer counts = gpu.Upload(dirty);
  DeviceForm values(kRows, kCols, 0, false, true);
  values.form.counts = counts.as<int64_t>();
  EXPECT_EQ(gpu.kernels().Prepare(in.as<float>(), kCols, kRows, values.form, gpu.stream()).code(),
            absl::StatusCode::kInvalidArgument);
  DeviceForm form(kRows, kCols, 0, true, false);
  form.form.counts = counts.as<int64_t>();
  DeviceNorm norm;
  norm.x = norm.weight = in.as<float>();
  norm.prepared = &form.form;
  norm.m = kRows;
  norm.width = kCols;
  EXPECT_EQ(gpu.kernels().Norm(norm, gpu.stream()).code(), absl::StatusCode::kInvalidArgument);
}

// Rows of whole blocks have no block more.
TEST_F(CudaRows, NoBlockIsWithoutWork) {
  TestGpu& gpu = TestGpu::Get();
  const DeviceBuffer x = gpu.Upload(RandomFloats(4096, 80)), y = gpu.Empty(4096 * sizeof(float));
  const DeviceBuffer two = gpu.Upload(std::vector<int32_t>{1, 0});
  const DeviceBuffer sums = gpu.Upload(std::vector<int64_t>(2 * 512, 1));
  const auto expect_blocks = [&](uint64_t blocks, const char* what, const absl::Status& launched) {
    CHECK_OK(launched);
    gpu.Sync();
    const emu::Counters counters = emu::GetCounters();
    if (counters.launches > 0) {
      EXPECT_EQ(counters.blocks, blocks) << what;
    }
    emu::ResetCounters();
  };
  emu::ResetCounters();
  const DeviceKernels& kernels = gpu.kernels();
  const float* const in = x.as<float>();
  float* const out = y.as<float>();
  expect_blocks(4, "add", kernels.Add(in, in, out, 2, 512, gpu.stream()));
  expect_blocks(4, "gather rows",
                kernels.GatherRows(in, two.as<int32_t>(), 2, 512, out, gpu.stream()));
  DeviceSum sum;
  sum.in = sums.as<int64_t>();
  sum.raw_bits = true;
  sum.x = out;
  sum.m = 2;
  sum.width = 512;
  expect_blocks(4, "sum", kernels.Sum(sum, gpu.stream()));
  DeviceGated gated;
  gated.gate = in;
  gated.up = in + 1024;
  gated.in_stride = 2048;
  gated.y = out;
  gated.m = 2;
  gated.width = 1024;
  expect_blocks(4, "gated", kernels.Gated(gated, gpu.stream()));
  DeviceForm form(2, 256, 16, true, false);
  expect_blocks(4, "prepare", kernels.Prepare(in, 256, 2, form.form, gpu.stream()));
  const DeviceBuffer inv_freq = gpu.Upload(std::vector<double>(8, 0.5));
  const DeviceBuffer cos_sin = gpu.Empty(2 * 16 * sizeof(float));
  DeviceRope rope;
  rope.inv_freq = inv_freq.as<double>();
  rope.rotary_dim = 16;
  rope.cos_sin = cos_sin.as<float>();
  DeviceTokens tokens;
  tokens.position = two.as<int32_t>();
  expect_blocks(2, "angles", kernels.Angles(rope, tokens, 2, gpu.stream()));
  expect_blocks(8, "rotate",
                kernels.Rotate(x.as<float>(), 256, 16, 16, rope, tokens, 2, gpu.stream()));
  const UploadedMatrix w(RandomMatrix(Q4Spec(2, 256), 81));
  const DeviceBuffer bits = gpu.Empty(2 * 256 * sizeof(int64_t));
  expect_blocks(4, "gather",
                kernels.Gather(w.get(), 0, two.as<int32_t>(), 2, bits.as<int64_t>(), gpu.stream()));
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
