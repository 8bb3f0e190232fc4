// Kernels on rows of f32: what CUDA's part of DeviceKernels (kernels/registry/device_kernels.h,
// which says what each computes) launches. Pointers are the device's. Nothing is launched for m =
// 0.
#pragma once

#include <cstdint>
#include <driver_types.h>

#include "kernels/registry/device_rows.h"

namespace bitshard::cuda {

// DeviceActivations::a8. records == nullptr: not wanted.
struct A8Rows {
  uint8_t* records = nullptr;
  int64_t row_bytes = 0;
  int64_t cols = 0, padded_cols = 0;
  int64_t segment_cols = 0;          // cols, when a row is one segment
  int64_t segments = 1, groups = 0;  // groups: of 32 columns, with those of the padding
  int64_t* counts = nullptr;         // null: none
};

// DeviceActivations in plain members. half == nullptr: of x and a8 alone what is there is wanted,
// and segments is 1; x == nullptr: not wanted, or there already.
struct PreparedRows {
  uint16_t* half = nullptr;
  float* scale = nullptr;
  float* run_sum = nullptr;
  float* x = nullptr;
  int64_t cols = 0, padded_cols = 0;
  int64_t segment_cols = 0;  // cols, when a row has one scale
  int64_t segments = 1;
  int64_t* counts = nullptr;  // null: none; those of a8 too
  A8Rows a8;
};

struct PrepareArgs {
  const float* x = nullptr;  // row r at + r * stride
  int64_t stride = 0;
  int64_t m = 0;
  PreparedRows out;
};
cudaError_t LaunchPrepare(const PrepareArgs& args, cudaStream_t stream);

// `out`: args.prepared in plain members; null: not wanted. y may be x. The mean of squares: thread
// t of 256 adds fma(x, x) of the columns 2t and 2t + 1 (mod 512) ascending; then the tree of
// WarpSum, and the eight warps ascending.
cudaError_t LaunchNorm(const DeviceNorm& args, const PreparedRows* out, cudaStream_t stream);

// Likewise. y may be gate or up.
cudaError_t LaunchGated(const DeviceGated& args, const PreparedRows* out, cudaStream_t stream);

cudaError_t LaunchSum(const DeviceSum& args, cudaStream_t stream);

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

}  // namespace bitshard::cuda
