// DeviceKernels' rotation, cache and attention on CUDA: checks, then the launch functions of
// attention.h. kernels/registry/device_kernels.h says what they compute.
#pragma once

#include <cstdint>
#include <driver_types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/registry/device_kernels.h"

namespace bitshard {

absl::StatusOr<KernelChoice> ChooseCudaAttention(const KvLayout& layout, int q_heads,
                                                 bool deterministic);

absl::Status CudaAngles(const DeviceRope& rope, const DeviceTokens& tokens, int64_t m,
                        cudaStream_t stream);
absl::Status CudaRotate(float* x, int64_t stride, int heads, int head_dim, const DeviceRope& rope,
                        const DeviceTokens& tokens, int64_t m, cudaStream_t stream);
absl::Status CudaAppend(const DeviceAttention& attention, const DeviceAppend& append,
                        const DeviceTokens& tokens, int64_t m, cudaStream_t stream);
absl::Status CudaAttend(const DeviceAttention& attention, const float* q, int64_t q_stride,
                        float* out, int64_t out_stride, const DeviceTokens& tokens, int64_t m,
                        cudaStream_t stream);

}  // namespace bitshard
