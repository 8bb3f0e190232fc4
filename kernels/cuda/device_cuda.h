// What device_cuda.cc, the CUDA device, needs of the rest of the backend. It registers itself as
// "cuda" (kernels/tensor/device.h).
#pragma once

#include <memory>

#include "absl/strings/string_view.h"

#include "kernels/registry/device_kernels.h"
#include "kernels/tensor/device.h"

namespace bitshard {

// Before main, by the file that computes on CUDA devices, once: a device opens with these kernels.
using MakeCudaKernelsFn = std::unique_ptr<DeviceKernels> (*)(const DeviceFacts& facts);
struct RegisterCudaKernels {
  explicit RegisterCudaKernels(MakeCudaKernelsFn make);
};

// Whether code compiled for `code`, such as "sm_80 compute_80 sm_90a" (compute_ is PTX), runs on a
// device of this compute capability (90 = 9.0).
bool CudaCodeRuns(absl::string_view code, int compute_capability);

}  // namespace bitshard
