// DeviceKernels' operations on rows of f32 on CUDA: checks, then the launch functions of rows.h.
// kernels/registry/device_kernels.h says what they compute.
#pragma once

#include <cstdint>
#include <driver_types.h>

#include "absl/status/status.h"

#include "kernels/registry/device_kernels.h"

namespace bitshard {

absl::Status CudaSum(const DeviceSum& args, cudaStream_t stream);
absl::Status CudaNorm(const DeviceNorm& args, cudaStream_t stream);
absl::Status CudaPrepare(const float* x, int64_t stride, int64_t m, const DeviceActivations& out,
                         cudaStream_t stream);
absl::Status CudaGated(const DeviceGated& args, cudaStream_t stream);
absl::Status CudaAdd(const float* a, const float* b, float* x, int64_t m, int64_t width,
                     cudaStream_t stream);
absl::Status CudaGatherRows(const float* x, const int32_t* index, int64_t count, int64_t width,
                            float* out, cudaStream_t stream);

}  // namespace bitshard
