// Products on int8 activations on the device and by the CPU's reference, for tests.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/registry/activations.h"
#include "kernels/registry/device_kernels.h"
#include "kernels/registry/linear.h"
#include "tests/kernels/cuda/linear_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {

inline constexpr int64_t kA8Total = 100;  // segments of the whole layer

// f32 rows [m][cols].
struct F32Rows {
  std::vector<float> x;
  int64_t m, cols, segment_cols = 0;
};
inline F32Rows RandomRows(int64_t m, int64_t cols, uint32_t seed, int64_t segment_cols = 0) {
  return {RandomFloats(static_cast<size_t>(m * cols), seed), m, cols, segment_cols};
}
// F32Rows [first, first + m).
inline F32Rows Some(const F32Rows& from, int64_t first, int64_t m) {
  return {{from.x.begin() + first * from.cols, from.x.begin() + (first + m) * from.cols},
          m,
          from.cols,
          from.segment_cols};
}

inline PreparedActivations OnCpu(const F32Rows& rows, ThreadPool& pool) {
  PreparedActivations prepared;
  prepared.Reserve(rows.m, rows.cols, rows.segment_cols);
  prepared.Prepare(rows.x.data(), rows.m, rows.cols, rows.cols, rows.segment_cols, kFormA8,
                   Isa::kScalar, pool);
  return prepared;
}

inline LinearResult RunOnCpu(const PackedMatrix& w, const F32Rows& rows) {
  ThreadPool pool(1);
  const PreparedActivations x = OnCpu(rows, pool);
  const auto bound =
      BoundLinear::Bind(w, ActivationMode::kA8, rows.segment_cols, kA8Total, Isa::kScalar);
  CHECK_OK(bound.status());
  LinearResult result;
  if (rows.segment_cols == 0) {
    result.y.resize(static_cast<size_t>(rows.m * w.rows()));
    bound->Run(x, result.y.data(), w.rows(), pool);
  } else {
    result.sums.resize(static_cast<size_t>(rows.m * w.rows()));
    result.poison.resize(static_cast<size_t>(rows.m));
    bound->RunSegments(x, result.sums.data(), w.rows(), result.poison.data(), pool);
  }
  return result;
}

// The form of m rows on the device, not yet made.
class DeviceA8 {
 public:
  DeviceA8(int64_t m, int64_t cols, int64_t segment_cols) : m_(m) {
    form.cols = cols;
    form.padded_cols = (cols + 63) / 64 * 64;
    form.segment_cols = segment_cols;
    records_ = TestGpu::Get().Empty(Bytes());
    form.a8 = records_.as<uint8_t>();
  }
  explicit DeviceA8(const F32Rows& rows) : DeviceA8(rows.m, rows.cols, rows.segment_cols) {
    TestGpu& gpu = TestGpu::Get();
    const DeviceBuffer x = gpu.Upload(rows.x);
    CHECK_OK(gpu.kernels().Prepare(x.as<float>(), rows.cols, m_, form, gpu.stream()));
    gpu.Sync();
  }
  std::vector<uint8_t> Download() const {
    return TestGpu::Get().Download<uint8_t>(records_, Bytes());
  }

  DeviceActivations form;

 private:
  size_t Bytes() const {
    return static_cast<size_t>(m_ * (form.padded_cols / 64) * kA8RecordBytes);
  }
  const int64_t m_;
  DeviceBuffer records_;
};

inline LinearResult RunOnDevice(const PackedMatrix& w, const F32Rows& rows) {
  const DeviceA8 x(rows);
  return std::move(RunLinear({&w}, x.form, rows.m, kA8Total)[0]);
}

inline testing::AssertionResult GivesTheBitsOfTheCpu(const PackedMatrix& w, const F32Rows& rows) {
  const LinearResult got = RunOnDevice(w, rows), want = RunOnCpu(w, rows);
  if (SameBits(got, want)) return testing::AssertionSuccess();
  auto failure = testing::AssertionFailure();
  failure << w.spec().Describe() << " n=" << w.rows() << " k=" << w.cols() << " m=" << rows.m
          << " segments of " << rows.segment_cols;
  for (int64_t i = 0; i < rows.m * w.rows(); ++i) {
    const bool same =
        rows.segment_cols == 0 ? SameBits(got.y[i], want.y[i]) : got.sums[i] == want.sums[i];
    if (same) continue;
    return failure << ": token " << i / w.rows() << " row " << i % w.rows() << ": "
                   << (rows.segment_cols == 0 ? got.y[i] : 0x1p-32 * got.sums[i]) << " for "
                   << (rows.segment_cols == 0 ? want.y[i] : 0x1p-32 * want.sums[i]);
  }
  return failure << ": the poison counts differ";
}

}  // namespace bitshard
