// Matrices, activations and results of linear kernels between host and device, for the tests of
// kernels/cuda/linear*.cu and gather.cu. One stream; everything is waited for.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "kernels/base/float_types.h"
#include "kernels/cuda/emu/findings.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/device_matrix.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {

class TestGpu {
 public:
  static TestGpu& Get() {
    static TestGpu gpu;
    return gpu;
  }
  const DeviceKernels& kernels() { return *device_->kernels(); }
  DeviceStream& stream() { return *stream_; }
  int multiprocessors() const { return device_->facts().multiprocessors; }

  template <typename T>
  DeviceBuffer Upload(const std::vector<T>& values) {
    DeviceBuffer buffer = Empty(values.size() * sizeof(T));
    CHECK_OK(device_->Copy(buffer.data(), values.data(), values.size() * sizeof(T), *stream_));
    Sync();
    return buffer;
  }
  DeviceBuffer Empty(size_t bytes) {
    auto buffer = device_->Alloc(std::max<size_t>(bytes, 1));
    CHECK_OK(buffer.status());
    return std::move(*buffer);
  }
  template <typename T>
  std::vector<T> Download(const DeviceBuffer& buffer, size_t count) {
    std::vector<T> values(count);
    CHECK_OK(device_->Copy(values.data(), buffer.data(), count * sizeof(T), *stream_));
    Sync();
    return values;
  }
  void Sync() { CHECK_OK(device_->Sync(*stream_)); }

 private:
  TestGpu() {
    auto device = OpenDevice("cuda", 0);
    CHECK_OK(device.status());
    device_ = std::move(*device);
    CHECK(device_->kernels() != nullptr);
    auto stream = device_->NewStream();
    CHECK_OK(stream.status());
    stream_ = std::move(*stream);
  }
  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
};

// What the emulator found wrong with the kernels so far; none on a real device.
inline void ExpectNoFindings() {
  EXPECT_EQ(emu::Errors(), 0u) << emu::FindingsText();
  emu::ResetFindings();
}

class DeviceKernelTest : public testing::Test {
 protected:
  void TearDown() override { ExpectNoFindings(); }
};

// Integers with every kind of scale that formats have, and where these make a difference with each
// of `groups`.
inline std::vector<SpecForm> FormsOfWidth(int bits, const std::vector<int>& groups) {
  using Kind = ScaleKind;
  constexpr ScaleOffset kNone = ScaleOffset::kNone, kMin = ScaleOffset::kMin,
                        kZero = ScaleOffset::kZero;
  std::vector<SpecForm> forms;
  for (const int group : groups) {
    for (const Kind kind : {Kind::kF16, Kind::kBf16, Kind::kF32}) {
      for (const ScaleOffset offset : {kNone, kMin, kZero})
        forms.push_back({bits, group, kind, offset});
    }
  }
  forms.push_back({bits, 32, Kind::kE8m0, kNone});
  forms.push_back({bits, 16, Kind::kE4m3, kNone});
  forms.push_back({bits, 64, Kind::kNested, kNone});
  forms.push_back({bits, 16, Kind::kSuperS8, kNone});
  forms.push_back({bits, 32, Kind::kSuperU8Min, kNone});
  forms.push_back({bits, 16, Kind::kSuperU4Min, kNone});
  forms.push_back({bits, 128, Kind::kF32, kNone, 0, 128});
  forms.push_back({bits, 128, Kind::kBf16, kNone, 48, 8, 5});
  forms.push_back({bits, 0, Kind::kF32, kNone, 0, 0});
  forms.push_back({bits, 32, Kind::kF16, kMin, 16});  // begins inside a group of either kind
  forms.push_back({bits, 16, Kind::kSuperS8, kNone, 240});
  return forms;
}

class UploadedMatrix {
 public:
  explicit UploadedMatrix(const PackedMatrix& host) {
    const auto layout = LayoutOnDevice(host.spec());
    CHECK_OK(layout.status());
    std::vector<uint8_t> blob(layout->bytes);
    CopyInDeviceOrder(host, *layout, 0, layout->bytes, blob.data());
    blob_ = TestGpu::Get().Upload(blob);
    matrix_ = MatrixOnDevice(host, *layout, blob_.data());
  }
  // Row r is row r % host.rows(): quick, however many there are. REQUIRES: those of `host` are
  // whole row tiles, or are all; each row has scales of its own.
  UploadedMatrix(const PackedMatrix& host, int64_t rows) : UploadedMatrix(host) {
    if (rows == host.rows()) return;
    PackedSpec spec = host.spec();
    CHECK(host.rows() % kTileRows == 0 && spec.block_rows == 1 && spec.scale != ScaleKind::kNested);
    const auto small = LayoutOnDevice(spec);
    CHECK_OK(small.status());
    spec.rows = static_cast<uint64_t>(rows);
    const auto large = LayoutOnDevice(spec);
    CHECK_OK(large.status());
    const auto tiles = TestGpu::Get().Download<uint8_t>(blob_, small->bytes);
    std::vector<uint8_t> blob(large->bytes);
    for (int64_t tile = 0; tile < (rows + kTileRows - 1) / kTileRows; ++tile) {
      const int64_t from = tile % (host.rows() / kTileRows);
      std::copy_n(&tiles[small->codes + from * small->tile_bytes], small->tile_bytes,
                  blob.begin() + large->codes + tile * large->tile_bytes);
      std::copy_n(tiles.begin() + small->scales + from * small->scale_tile_bytes,
                  small->scale_tile_bytes,
                  blob.begin() + large->scales + tile * large->scale_tile_bytes);
    }
    blob_ = TestGpu::Get().Upload(blob);
    matrix_ = MatrixOnDevice(host, *large, blob_.data());
    matrix_.spec = spec;
    matrix_.scale.rows = rows;
  }
  const DeviceMatrix& get() const { return matrix_; }

 private:
  DeviceBuffer blob_;
  DeviceMatrix matrix_;
};

// The prepared form by its definition (kernels/registry/device_kernels.h), on the host.
struct HostActivations {
  HostActivations(const std::vector<float>& values, int64_t rows, int64_t columns, int64_t segment)
      : m(rows), cols(columns), padded((columns + 63) / 64 * 64), segment_cols(segment), x(values) {
    half.assign(m * padded, 0);
    run_sum.assign(m * padded / 16, 0.0f);
    const int64_t width = segment == 0 ? std::max<int64_t>(cols, 1) : segment;
    segments = segment == 0 ? 1 : (cols + segment - 1) / segment;
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t s = 0; s < segments; ++s) PrepareSegment(row, s * width, width);
      for (int64_t k = 0; k < cols; ++k) run_sum[(row * padded + k) / 16] += Half(row, k);
    }
  }
  static int64_t Place(int64_t k) { return k / 16 * 16 + k % 8 / 2 * 4 + k % 2 + k % 16 / 8 * 2; }
  float Half(int64_t row, int64_t k) const { return F16ToF32(half[row * padded + Place(k)]); }
  // What kernels multiply with; exact.
  double Value(int64_t row, int64_t k) const {
    const int64_t s = segment_cols == 0 ? 0 : k / segment_cols;
    return double{Half(row, k)} * scale[row * segments + s];
  }

  int64_t m, cols, padded, segment_cols, segments = 1;
  std::vector<float> x;  // [m][cols]
  std::vector<uint16_t> half;
  std::vector<float> scale, run_sum;

 private:
  void PrepareSegment(int64_t row, int64_t begin, int64_t width) {
    float largest = 0;
    bool finite = true;
    const int64_t end = std::min(begin + width, cols);
    for (int64_t k = begin; k < end; ++k) {
      finite = finite && std::isfinite(x[row * cols + k]);
      largest = std::max(largest, std::fabs(x[row * cols + k]));
    }
    float power = largest == 0 ? 0.0f : std::ldexp(1.0f, std::ilogb(largest) - 14);
    if (!finite) power = std::numeric_limits<float>::quiet_NaN();
    scale.push_back(power);
    if (!finite || power == 0) return;
    for (int64_t k = begin; k < end; ++k)
      half[row * padded + Place(k)] = F32ToF16(x[row * cols + k] / power);
  }
};

class UploadedActivations {
 public:
  explicit UploadedActivations(const HostActivations& host)
      : half_(TestGpu::Get().Upload(host.half)),
        scale_(TestGpu::Get().Upload(host.scale)),
        run_sum_(TestGpu::Get().Upload(host.run_sum)),
        x_(TestGpu::Get().Upload(host.x)) {
    view_.half = half_.as<uint16_t>();
    view_.scale = scale_.as<float>();
    view_.run_sum = run_sum_.as<float>();
    view_.x = x_.as<float>();
    view_.cols = host.cols;
    view_.padded_cols = host.padded;
    view_.segment_cols = host.segment_cols;
  }
  const DeviceActivations& get() const { return view_; }

 private:
  DeviceBuffer half_, scale_, run_sum_, x_;
  DeviceActivations view_;
};

struct LinearResult {
  std::vector<float> y;               // [m][rows]
  std::vector<int64_t> sums, poison;  // [m][rows], [m]
};

// NaN payloads are not part of any promise.
inline bool SameBits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}
inline bool SameBits(const LinearResult& a, const LinearResult& b) {
  return a.sums == b.sums && a.poison == b.poison && a.y.size() == b.y.size() &&
         std::equal(a.y.begin(), a.y.end(), b.y.begin(),
                    [](float p, float q) { return SameBits(p, q); });
}

// One or more matrices, each with its own output, `pad` values longer than its rows, on m rows of
// activations.
inline std::vector<LinearResult> RunLinear(const std::vector<const PackedMatrix*>& matrices,
                                           const DeviceActivations& x, int64_t m,
                                           int64_t segments_total = 1,
                                           const std::vector<float>& bias = {}, int64_t pad = 0,
                                           bool deterministic = true) {
  TestGpu& gpu = TestGpu::Get();
  std::vector<UploadedMatrix> uploaded;
  std::vector<DeviceBuffer> outputs, poisons, biases;
  std::vector<DeviceLinear> members;
  uploaded.reserve(matrices.size());
  const bool segmented = x.segment_cols != 0;
  for (const PackedMatrix* matrix : matrices) {
    DeviceLinear member;
    member.w = &uploaded.emplace_back(*matrix).get();
    member.stride = matrix->rows() + pad;
    member.segments_total = segments_total;
    member.deterministic = deterministic;
    outputs.push_back(gpu.Empty(m * member.stride * (segmented ? 8 : 4)));
    poisons.push_back(gpu.Upload(std::vector<int64_t>(m, 0)));
    if (segmented) {
      member.sums = outputs.back().as<int64_t>();
      member.poison = poisons.back().as<int64_t>();
    } else {
      member.y = outputs.back().as<float>();
      if (!bias.empty()) {
        biases.push_back(gpu.Upload(bias));
        member.bias = biases.back().as<float>();
      }
    }
    members.push_back(member);
  }
  CHECK_OK(gpu.kernels().Linear(members, x, m, gpu.stream()));
  gpu.Sync();
  std::vector<LinearResult> results(members.size());
  for (size_t i = 0; i < members.size(); ++i) {
    const size_t rows = static_cast<size_t>(members[i].w->rows()), stride = rows + pad;
    for (int64_t row = 0; row < m; ++row) {
      // Row by row: what lies between rows is never written.
      if (segmented) {
        const DeviceBuffer at(outputs[i].as<int64_t>() + row * stride, rows * 8, [](void*) {});
        for (const int64_t v : gpu.Download<int64_t>(at, rows)) results[i].sums.push_back(v);
      } else {
        const DeviceBuffer at(outputs[i].as<float>() + row * stride, rows * 4, [](void*) {});
        for (const float v : gpu.Download<float>(at, rows)) results[i].y.push_back(v);
      }
    }
    if (segmented) results[i].poison = gpu.Download<int64_t>(poisons[i], m);
  }
  return results;
}
inline std::vector<LinearResult> RunLinear(const std::vector<const PackedMatrix*>& matrices,
                                           const HostActivations& x, int64_t segments_total = 1,
                                           const std::vector<float>& bias = {}, int64_t pad = 0,
                                           bool deterministic = true) {
  return RunLinear(matrices, UploadedActivations(x).get(), x.m, segments_total, bias, pad,
                   deterministic);
}
inline LinearResult RunLinear(const PackedMatrix& matrix, const HostActivations& x,
                              int64_t segments_total = 1) {
  return std::move(RunLinear(std::vector<const PackedMatrix*>{&matrix}, x, segments_total)[0]);
}

// Rows of weights in double, exact: [rows][cols].
inline std::vector<double> ExactWeights(const PackedMatrix& w) {
  std::vector<double> values;
  for (int64_t row = 0; row < w.rows(); ++row) {
    for (int64_t k = 0; k < w.cols(); ++k) {
      if (w.spec().type != PackedSpec::Type::kInt) {
        values.push_back(w.ValueAt(row, k));
        continue;
      }
      const int64_t group = w.GroupOf(k);
      const double centred = w.CodeAt(row, k) - w.ZeroAt(row, group);
      values.push_back(centred * w.ScaleAt(row, group) +
                       (w.spec().has_min() ? double{w.MinAt(row, group)} : 0.0));
    }
  }
  return values;
}

// |got - exact| / |exact| over all outputs. got(token, row).
template <typename Got>
double NormError(const PackedMatrix& w, const HostActivations& x, const Got& got) {
  const std::vector<double> weights = ExactWeights(w);
  const bool f32 = w.spec().type == PackedSpec::Type::kF32;
  double error = 0, norm = 0;
  for (int64_t token = 0; token < x.m; ++token) {
    std::vector<double> values(x.cols);
    for (int64_t k = 0; k < x.cols; ++k)
      values[k] = f32 ? double{x.x[token * x.cols + k]} : x.Value(token, k);
    for (int64_t row = 0; row < w.rows(); ++row) {
      double exact = 0;
      for (int64_t k = 0; k < x.cols; ++k) exact += weights[row * x.cols + k] * values[k];
      error += (got(token, row) - exact) * (got(token, row) - exact);
      norm += exact * exact;
    }
  }
  return norm == 0 ? std::sqrt(error) : std::sqrt(error / norm);
}

// Each run, each end of a cell (two of them with minima) and each part rounds once to 24 digits;
// the sums that are rounded are seldom more than a few times the result.
inline double LinearErrorBound(int64_t cols, int64_t group_size) {
  const double roundings = cols / 16.0 + 2.0 * cols / std::min<int64_t>(group_size, 64) + 16;
  return 2 * roundings * 0x1p-24;
}

}  // namespace bitshard
