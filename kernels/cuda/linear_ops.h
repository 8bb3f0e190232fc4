// DeviceKernels' Linear, ChooseLinear and Gather on CUDA: checks, and which kernel (linear.h) a
// matrix goes to. kernels/registry/device_kernels.h says what they compute.
#pragma once

#include <cstdint>
#include <driver_types.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/registry/device_kernels.h"

namespace bitshard {

absl::StatusOr<KernelChoice> ChooseCudaLinear(const PackedSpec& spec, int64_t segment_cols,
                                              ActivationMode mode, bool deterministic);
bool CudaReadsA8(const PackedSpec& spec, int64_t segment_cols, ActivationMode mode);

absl::Status CudaLinear(absl::Span<const DeviceLinear> members, const DeviceActivations& x,
                        int64_t m, cudaStream_t stream);

absl::Status CudaGather(const DeviceMatrix& w, int64_t vocab_begin, const int32_t* tokens,
                        int64_t m, int64_t* out, cudaStream_t stream);

}  // namespace bitshard
