// Which of the kernels in integers serves a launch, and its grid: row tiles of all members, in
// units that a block computes, times chunks of tokens. The bits are the same in all of them.
#pragma once

#include <climits>

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear_a8.h"
#include "kernels/cuda/linear_a8_any.cuh"
#include "kernels/cuda/linear_a8_large.cuh"
#include "kernels/cuda/linear_a8_split.cuh"
#include "kernels/cuda/linear_grid.cuh"

namespace bitshard::cuda {

template <int kBits, int kBlocks, bool kPairs>
cudaError_t LaunchA8Split(LinearA8Launch launch, cudaStream_t stream) {
  unsigned blocks = 0;
  if (!ShareOut(16 * kA8SplitTiles, 8 * kBlocks, launch, blocks)) return cudaErrorInvalidValue;
  if (blocks == 0) return cudaSuccess;
  bool has_min = false;
  for (int i = 0; i < launch.count; ++i) has_min = has_min || launch.members[i].w.scale.has_min;
  const size_t bytes = A8SplitBytes<kBlocks>(kA8TileRuns / (kPairs ? 2 : 1), has_min);
  return LAUNCH_KERNEL_EARLY((LinearA8SplitKernel<kBits, kBlocks, kPairs>), dim3(blocks),
                             dim3(32 * kA8Warps), bytes, stream, launch);
}

template <int kBits>
cudaError_t LaunchA8Any(LinearA8Launch launch, cudaStream_t stream) {
  unsigned blocks = 0;
  if (!ShareOut(16 * kA8Warps, kA8AnyTokens, launch, blocks)) return cudaErrorInvalidValue;
  if (blocks == 0) return cudaSuccess;
  return LAUNCH_KERNEL_EARLY(LinearA8AnyKernel<kBits>, dim3(blocks), dim3(32 * kA8Warps), 0, stream,
                             launch);
}

// For pairs of runs: few tokens, or enough of them to fill the chunks and enough blocks to fill a
// GPU.
template <int kBits>
cudaError_t LaunchA8Pairs(LinearA8Launch launch, cudaStream_t stream) {
  if (launch.m <= 8) return LaunchA8Split<kBits, 1, true>(launch, stream);
  unsigned blocks = 0;
  if (launch.m >= kA8LargeTokens && ShareOut(16 * kA8Warps, kA8LargeTokens, launch, blocks) &&
      IsForMany(launch.m, blocks)) {
    return LAUNCH_KERNEL_EARLY((LinearA8LargeKernel<kBits>), dim3(blocks), dim3(32 * kA8Warps),
                               A8LargeBytes(launch.segmented), stream, launch);
  }
  return LaunchA8Split<kBits, 2, true>(launch, stream);
}

template <int kBits>
cudaError_t LaunchLinearA8Of(const LinearA8Launch& launch, cudaStream_t stream) {
  switch (CellsOf(launch.members[0], launch)) {
    case A8Cells::kPairs:
      return LaunchA8Pairs<kBits>(launch, stream);
    case A8Cells::kRuns:
      return LaunchA8Split<kBits, 1, false>(launch, stream);
    case A8Cells::kAny:
      break;
  }
  return LaunchA8Any<kBits>(launch, stream);
}

}  // namespace bitshard::cuda
