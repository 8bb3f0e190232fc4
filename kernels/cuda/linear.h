// Products of packed matrices and prepared activations, and rows out of packed matrices: the plain
// host side of the kernels, without Abseil, for nvcc and g++ alike.
#pragma once

#include <cstdint>
#include <driver_types.h>

#include "kernels/tensor/scale_plane.h"

namespace bitshard::cuda {

inline constexpr int kMaxLinearMembers = 8;

enum class WeightType : uint8_t { kInt, kF32, kF16, kBf16 };

// A matrix in the device's order (kernels/tensor/device_matrix.h).
struct Weight {
  WeightType type = WeightType::kInt;
  int32_t bits = 0;                // kInt
  const uint8_t* codes = nullptr;  // on the device
  int64_t tile_bytes = 0;
  int64_t rows = 0, cols = 0;
  ScaleView scale;  // kInt; pointers to the device
};

struct LinearMember {
  Weight w;
  // One of the two; row r at + r * stride.
  float* y = nullptr;
  int64_t* sums = nullptr;
  int64_t stride = 0;
  const float* bias = nullptr;
  int64_t* poison = nullptr;
  float limit = 0;  // of sums: the smallest magnitude that poisons
  // Groups in runs of 16 columns; group_runs 0: all columns are in group 0. (LaunchLinearTiles)
  int32_t group_runs = 0, first_group_runs = 0;
};

// What the launches of all kernels have, whatever the activations.
struct LinearLaunchBase {
  LinearMember members[kMaxLinearMembers];
  int32_t count = 0;
  bool segmented = false;  // all members have sums, or all have y
  int64_t cols = 0;
  int64_t segment_cols = 0;  // cols when it is whole
  int32_t m = 0;

  // Of the functions that launch, which fill them (linear_grid.cuh).
  int32_t token_chunks = 0;
  int32_t first_unit[kMaxLinearMembers + 1] = {};
};

struct LinearLaunch : LinearLaunchBase {
  // Activations, as DeviceActivations (kernels/registry/device_kernels.h) has them.
  const uint16_t* half = nullptr;
  const float* scale = nullptr;
  const float* run_sum = nullptr;
  const float* x = nullptr;
  int64_t padded_cols = 0;
  int32_t segments = 0;  // scales a row

  // Of LaunchLinearTiles, which fills it.
  int32_t warps_per_tile = 0;
  // 1024.0 in two halves. Not a constant in the kernels: as one it costs an instruction at each
  // use.
  uint32_t half_1024 = 0x64006400u;
};
static_assert(sizeof(LinearLaunch) <= 4096);  // what a kernel's parameters may take

// Tensor cores, in the order that linear_cells.cuh states. REQUIRES: all members of one type and
// width; segments, groups and the first group's offset are multiples of 16 columns; for integers
// all members have scales of kind kF16 or kBf16 a row (ScalesArePlainHalves), or none has.
cudaError_t LaunchLinearTiles(const LinearLaunch& launch, cudaStream_t stream);
bool ScalesArePlainHalves(const Weight& w);

// The same for many tokens on Hopper, in the order that linear_wgmma.cu states. REQUIRES: what
// LaunchLinearTiles does, and that ServesLinearWgmma says so.
inline constexpr int kLeastWgmmaTokens = 64;
bool ServesLinearWgmma(const LinearLaunch& launch);
cudaError_t LaunchLinearWgmma(const LinearLaunch& launch, cudaStream_t stream);

// One thread an output: anything, slowly, in the order that linear_plain.cu states. One member.
cudaError_t LaunchLinearPlain(const LinearLaunch& launch, cudaStream_t stream);

// out[m][w.cols]: raw f32 bits of rows tokens[i] - vocab_begin, zeros where the matrix has no such
// row.
struct GatherLaunch {
  Weight w;
  int64_t vocab_begin = 0;
  const int32_t* tokens = nullptr;
  int64_t m = 0;
  int64_t* out = nullptr;
};
cudaError_t LaunchGather(const GatherLaunch& launch, cudaStream_t stream);

// Of LaunchLinearTiles: one file a width, so that they compile side by side.
cudaError_t LaunchLinearW2(const LinearLaunch& launch, cudaStream_t stream);
cudaError_t LaunchLinearW3(const LinearLaunch& launch, cudaStream_t stream);
cudaError_t LaunchLinearW4(const LinearLaunch& launch, cudaStream_t stream);
cudaError_t LaunchLinearW5(const LinearLaunch& launch, cudaStream_t stream);
cudaError_t LaunchLinearW6(const LinearLaunch& launch, cudaStream_t stream);
cudaError_t LaunchLinearW7(const LinearLaunch& launch, cudaStream_t stream);
cudaError_t LaunchLinearW8(const LinearLaunch& launch, cudaStream_t stream);
cudaError_t LaunchLinearHalf(const LinearLaunch& launch, cudaStream_t stream);  // f16, bf16

}  // namespace bitshard::cuda
