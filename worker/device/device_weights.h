// A rank's weights in the memory of a device: matrices in the device's order
// (kernels/tensor/device_matrix.h), vectors as f32. Immutable once loaded.
//
// Made while loading: each finished matrix is put in order by all threads into one of two pinned
// buffers while the other is on its way, then the host forgets it. The host holds one matrix and
// kStagingBytes twice at the most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/base/thread_pool.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/device_matrix.h"
#include "worker/load/loader.h"

namespace bitshard {

class DeviceWeights {
 public:
  static constexpr size_t kStagingBytes = 16 << 20;

  // Null: this rank owns nothing of it, or it is a vector.
  const DeviceMatrix* matrix(uint32_t weight) const {
    return matrices_[weight].view.spec.rows == 0 ? nullptr : &matrices_[weight].view;
  }
  // On the device; null: it is a matrix, or empty.
  const float* vector(uint32_t weight) const { return vectors_[weight]; }
  size_t count() const { return matrices_.size(); }
  // All of it, as allocated.
  uint64_t bytes() const { return bytes_; }

 private:
  friend class DeviceWeightSink;
  struct Matrix {
    DeviceBuffer blob;
    DeviceMatrix view;
  };
  std::vector<Matrix> matrices_;  // by weight
  DeviceBuffer vector_memory_;
  std::vector<const float*> vectors_;  // by weight
  uint64_t bytes_ = 0;
};

// For a graph of `weights` weights. Device and pool outlive it, the device also the weights.
absl::StatusOr<std::unique_ptr<WeightSink>> MakeDeviceWeightSink(
    Device& device, size_t weights, ThreadPool& pool,
    size_t staging_bytes = DeviceWeights::kStagingBytes);

}  // namespace bitshard
