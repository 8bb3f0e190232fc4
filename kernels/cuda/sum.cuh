// One value of a DeviceSum: of the int64 in which ranks add up, kernels/registry/reduction.h bit by
// bit, with bias, residual and poison; or of sums that are f32 already.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/registry/device_rows.h"

namespace bitshard::cuda {

// The host sees it while the kernel still runs: a store of the system's scope, after which nothing
// has to be seen. By one thread of the launch, behind its dependency wait.
__device__ __forceinline__ void MarkProgress(const DeviceSum& sum) {
  if (sum.progress != nullptr) *static_cast<volatile uint64_t*>(sum.progress) = sum.mark;
}

// Whether the sums say that the row is; `speaker`: one thread of the row, which marks it.
__device__ __forceinline__ bool IsPoisoned(const DeviceSum& sum, int64_t row, bool speaker) {
  const bool poisoned = sum.poison != nullptr && sum.poison[row] != 0;
  if (poisoned && speaker) sum.poisoned[row] = 1;
  return poisoned;
}

__device__ __forceinline__ float ValueOf(const DeviceSum& sum, int64_t row, int64_t col,
                                         bool poisoned) {
  const int64_t at = row * sum.width + col;
  float value;
  if (sum.floats != nullptr) {
    value = sum.floats[at];
    constexpr uint32_t kNoNumber = 0x7f800000u;  // the exponent of infinity and NaN
    if ((__float_as_uint(value) & kNoNumber) == kNoNumber) sum.poisoned[row] = 1;
  } else {
    const int64_t in = sum.in[at];
    value = sum.raw_bits ? __uint_as_float(static_cast<uint32_t>(in))
                         : static_cast<float>(static_cast<double>(in) * (1.0 / 4294967296.0));
  }
  if (sum.bias != nullptr) value += sum.bias[col];
  if (sum.residual != nullptr) value = sum.residual[at] + value;
  return poisoned ? __uint_as_float(0x7fc00000u) : value;
}

}  // namespace bitshard::cuda
