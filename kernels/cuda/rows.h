// Kernels on rows of f32: what CUDA's part of DeviceKernels (kernels/registry/device_kernels.h,
// which says what each computes) launches. Pointers are the device's. Nothing is launched for m =
// 0.
#pragma once

#include <cstdint>
#include <driver_types.h>

namespace bitshard::cuda {

// DeviceActivations in plain members. half == nullptr: x alone is wanted, and segments is 1; x ==
// nullptr: not wanted, or there already.
struct PreparedRows {
  uint16_t* half = nullptr;
  float* scale = nullptr;
  float* run_sum = nullptr;
  float* x = nullptr;
  int64_t cols = 0, padded_cols = 0;
  int64_t segment_cols = 0;  // cols, when a row has one scale
  int64_t segments = 1;
};

struct PrepareArgs {
  const float* x = nullptr;  // row r at + r * stride
  int64_t stride = 0;
  int64_t m = 0;
  PreparedRows out;
};
cudaError_t LaunchPrepare(const PrepareArgs& args, cudaStream_t stream);

// y may be x. The mean of squares: thread t of 256 adds fma(x, x) of the columns 2t and 2t + 1 (mod
// 512) ascending; then the tree of WarpSum, and the eight warps ascending.
struct NormArgs {
  const float* x = nullptr;  // [m][width]
  const float* weight = nullptr;
  float epsilon = 0;
  float* y = nullptr;  // null: not wanted
  int64_t m = 0, width = 0;
  bool prepare = false;
  PreparedRows out;  // if `prepare`
};
cudaError_t LaunchNorm(const NormArgs& args, cudaStream_t stream);

// y may be gate or up.
struct GatedArgs {
  const float* gate = nullptr;
  const float* up = nullptr;
  int64_t in_stride = 0;
  bool gelu = false;
  float* y = nullptr;  // null: not wanted
  int64_t m = 0, width = 0;
  bool prepare = false;
  PreparedRows out;  // if `prepare`
};
cudaError_t LaunchGated(const GatedArgs& args, cudaStream_t stream);

struct SumArgs {
  const int64_t* in = nullptr;
  const int64_t* poison = nullptr;
  bool raw_bits = false;
  const float* bias = nullptr;
  const float* residual = nullptr;
  float* x = nullptr;
  uint8_t* poisoned = nullptr;
  int64_t m = 0, width = 0;
};
cudaError_t LaunchSum(const SumArgs& args, cudaStream_t stream);

struct AddArgs {
  const float* a = nullptr;
  const float* b = nullptr;
  float* x = nullptr;
  int64_t count = 0;
};
cudaError_t LaunchAdd(const AddArgs& args, cudaStream_t stream);

struct GatherRowsArgs {
  const float* x = nullptr;
  const int32_t* index = nullptr;
  float* out = nullptr;
  int64_t count = 0, width = 0;
};
cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream);

cudaError_t LaunchMark(uint64_t* word, uint64_t value, cudaStream_t stream);

}  // namespace bitshard::cuda
