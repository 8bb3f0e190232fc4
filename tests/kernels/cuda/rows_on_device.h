// What the tests of kernels on rows share: shapes, forms on the device, their comparison.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/registry/device_kernels.h"
#include "tests/kernels/cuda/linear_on_device.h"
#include "tests/kernels/random_matrix.h"

namespace bitshard {

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

inline testing::AssertionResult SameFloats(const std::vector<float>& got,
                                           const std::vector<float>& want) {
  if (got.size() != want.size()) return testing::AssertionFailure() << "sizes differ";
  for (size_t i = 0; i < got.size(); ++i) {
    if (!SameBits(got[i], want[i]))
      return testing::AssertionFailure() << "[" << i << "] " << got[i] << " for " << want[i];
  }
  return testing::AssertionSuccess();
}

inline void ExpectForm(const DeviceForm& got, const HostActivations& want,
                       const std::string& what) {
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
inline constexpr Shape kShapes[] = {{1, 1, 0},    {2, 15, 0},    {3, 64, 0},   {2, 90, 0},
                                    {1, 1040, 0}, {2, 640, 64},  {1, 200, 64}, {3, 100, 48},
                                    {1, 272, 16}, {2, 120, 20},  {1, 77, 7},   {2, 40, 64},
                                    {1, 33, 128}, {1, 2304, 128}};

inline std::string Name(const Shape& s) {
  return "m=" + std::to_string(s.m) + " cols=" + std::to_string(s.cols) + " segments of " +
         std::to_string(s.segment_cols);
}

}  // namespace bitshard
