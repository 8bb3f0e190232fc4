// Kernels that look through rows of logits for the sampler: what CUDA's part of DeviceKernels
// launches; kernels/registry/logit_scan.h says what they compute. Nothing is launched for no rows
// or no tokens.
#pragma once

#include <cstdint>
#include <driver_types.h>

#include "kernels/registry/logit_scan.h"

namespace bitshard::cuda {

// A block looks through so many tokens.
constexpr int kScanTokens = 4096;
inline int64_t ScanChunks(int64_t count) { return (count + kScanTokens - 1) / kScanTokens; }

cudaError_t LaunchScan(const DeviceScan& args, cudaStream_t stream);
uint64_t ScanScratchBytes(int64_t m, int64_t count);
cudaError_t LaunchMassSums(const DeviceMassSums& args, cudaStream_t stream);

}  // namespace bitshard::cuda
