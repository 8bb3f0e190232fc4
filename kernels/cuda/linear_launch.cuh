// Which of the tensor-core kernels serves a launch, and its grid: row tiles of all members, in
// units that a block computes, times chunks of tokens.
#pragma once

#include <climits>

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_large.cuh"
#include "kernels/cuda/linear_tiles.cuh"

namespace bitshard::cuda {

// False: more than a grid can have.
inline bool ShareOut(int rows_a_unit, int tokens_a_chunk, LinearLaunch& launch, unsigned& blocks) {
  launch.token_chunks = (launch.m + tokens_a_chunk - 1) / tokens_a_chunk;
  int64_t units = 0;
  for (int i = 0; i < launch.count; ++i) {
    units += (launch.members[i].w.rows + rows_a_unit - 1) / rows_a_unit;
    if (units > INT_MAX / launch.token_chunks) return false;
    launch.first_unit[i + 1] = static_cast<int32_t>(units);
  }
  blocks = static_cast<unsigned>(units * launch.token_chunks);
  return true;
}

template <class Weights, int kBlocks>
cudaError_t LaunchLinearBlocks(LinearLaunch launch, cudaStream_t stream) {
  launch.warps_per_tile = kLinearWarps;
  if (launch.segmented && launch.segments > 0) {
    while (launch.warps_per_tile > launch.segments) launch.warps_per_tile /= 2;
  }
  unsigned blocks = 0;
  if (!ShareOut(16 * kLinearWarps / launch.warps_per_tile, 8 * kBlocks, launch, blocks))
    return cudaErrorInvalidValue;
  if (blocks == 0) return cudaSuccess;
  return LAUNCH_KERNEL_EARLY((LinearTilesKernel<Weights, kBlocks>), dim3(blocks),
                             dim3(32 * kLinearWarps), 0, stream, launch);
}

// kMostBlocks: of 8 tokens at once in the kernel for few, as registers allow.
template <class Weights, int kMostBlocks>
cudaError_t LaunchLinearWith(LinearLaunch launch, cudaStream_t stream) {
  if (launch.m <= 0) return cudaSuccess;
  if (launch.m <= 8) return LaunchLinearBlocks<Weights, 1>(launch, stream);
  if (launch.m <= 16) return LaunchLinearBlocks<Weights, 2>(launch, stream);
  // Enough tokens to fill the chunks, and enough blocks to fill a GPU. The bits are the same.
  constexpr int kManyTokens = 256;
  constexpr unsigned kManyBlocks = 96;
  unsigned blocks = 0;
  if (launch.m > kLargeTokens && launch.cols > 0 &&
      ShareOut(16 * kLinearWarps, kLargeTokens, launch, blocks) && blocks > 0 &&
      (launch.m >= kManyTokens || blocks >= kManyBlocks)) {
    return LAUNCH_KERNEL_EARLY((LinearLargeKernel<Weights>), dim3(blocks), dim3(32 * kLinearWarps),
                               kLargeSharedBytes, stream, launch);
  }
  return LaunchLinearBlocks<Weights, kMostBlocks>(launch, stream);
}

template <int kBits>
cudaError_t LaunchLinearInt(const LinearLaunch& launch, cudaStream_t stream) {
  return launch.count > 0 && ScalesArePlainHalves(launch.members[0].w)
             ? LaunchLinearWith<IntWeights<kBits, true>, 4>(launch, stream)
             : LaunchLinearWith<IntWeights<kBits, false>, 2>(launch, stream);
}

}  // namespace bitshard::cuda
