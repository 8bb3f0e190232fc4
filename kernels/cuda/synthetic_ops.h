// DeviceKernels' MakeSynthetic on CUDA (kernels/registry/device_kernels.h).
#pragma once

#include <cstdint>
#include <driver_types.h>

#include "absl/status/status.h"

#include "kernels/tensor/device_matrix.h"
#include "kernels/tensor/synthetic_values.h"

namespace bitshard {

absl::Status CudaMakeSynthetic(const PackedSpec& spec, const DeviceMatrixLayout& layout,
                               const SyntheticSource& source, uint8_t* blob, cudaStream_t stream);

}  // namespace bitshard
