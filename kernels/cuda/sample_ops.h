// DeviceKernels' passes over logits on CUDA: checks, then the launch functions of sample.h.
// kernels/registry/logit_scan.h says what they compute.
#pragma once

#include <driver_types.h>

#include "absl/status/status.h"

#include "kernels/registry/logit_scan.h"

namespace bitshard {

absl::Status CudaScan(const DeviceScan& args, cudaStream_t stream);
absl::Status CudaSumMasses(const DeviceMassSums& args, cudaStream_t stream);

}  // namespace bitshard
