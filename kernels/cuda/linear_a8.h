// Products of packed integers and int8 activations (DeviceActivations::a8), summed in integers
// inside a cell: the plain host side, without Abseil, as linear.h.
#pragma once

#include <cstdint>
#include <driver_types.h>

#include "kernels/cuda/linear.h"
#include "kernels/registry/device_rows.h"

namespace bitshard::cuda {

constexpr int kA8GroupRuns = 2;  // runs of 16 columns that share an activation scale
// Columns of a matrix, those before it in its first group with them.
constexpr int64_t kMaxA8Cols = 16 * 65535;

struct LinearA8Launch : LinearLaunchBase {
  const uint8_t* records = nullptr;  // DeviceActivations::a8
  int64_t row_bytes = 0;             // of one row's records
};
static_assert(sizeof(LinearA8Launch) <= 4096);  // what a kernel's parameters may take

// What a weight group, an activation group and a segment have in common, in whole runs of 16
// columns: a pair of runs of a tile; every run; or neither.
enum class A8Cells : uint8_t { kPairs, kRuns, kAny };
A8Cells CellsOf(const LinearMember& member, const LinearA8Launch& launch);

// In the order of kernels/registry/linear.h, mode a8: the bits of the CPU, on any device, for any
// m. REQUIRES: integers of one width; segments, groups and the first group's offset are multiples
// of 16 columns; CellsOf is the same for all members.
cudaError_t LaunchLinearA8(const LinearA8Launch& launch, cudaStream_t stream);

// Of LaunchLinearA8: one file a width, so that they compile side by side.
cudaError_t LaunchLinearA8W2(const LinearA8Launch& launch, cudaStream_t stream);
cudaError_t LaunchLinearA8W3(const LinearA8Launch& launch, cudaStream_t stream);
cudaError_t LaunchLinearA8W4(const LinearA8Launch& launch, cudaStream_t stream);
cudaError_t LaunchLinearA8W5(const LinearA8Launch& launch, cudaStream_t stream);
cudaError_t LaunchLinearA8W6(const LinearA8Launch& launch, cudaStream_t stream);
cudaError_t LaunchLinearA8W7(const LinearA8Launch& launch, cudaStream_t stream);
cudaError_t LaunchLinearA8W8(const LinearA8Launch& launch, cudaStream_t stream);

}  // namespace bitshard::cuda
