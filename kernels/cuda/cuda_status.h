// CUDA errors as statuses: which call, CUDA's own name and words, what to try.
//
//   RESOURCE_EXHAUSTED   out of memory
//   FAILED_PRECONDITION  no device or driver, or one that is busy or too old; capture rules broken
//   UNIMPLEMENTED        no code for this architecture, not supported here
//   INTERNAL             everything else: our bug, or the device's. Where the context is lost for
//                        good also IsDeviceLost (kernels/tensor/device.h)
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include <cuda_runtime_api.h>

namespace bitshard {

// `call` is the function's name, "cudaMalloc". An error that can be got over is also taken out of
// CUDA's own memory of the last error, so that it is not found by the next check of a launch.
absl::Status CudaStatus(cudaError_t error, absl::string_view call);

}  // namespace bitshard
