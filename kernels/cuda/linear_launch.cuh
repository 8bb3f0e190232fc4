// Which of the tensor-core kernels serves a launch, and its grid: row tiles of all members, in
// units that a block computes, times chunks of tokens.
#pragma once

#include <climits>

#include <cuda_runtime_api.h>

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_grid.cuh"
#include "kernels/cuda/linear_large.cuh"
#include "kernels/cuda/linear_tiles.cuh"

namespace bitshard::cuda {

// One part's cells are whole tiles, without minima: what the unrolled kernels ask for.
inline bool CellsAreTiles(const LinearLaunch& launch) {
  if (launch.segmented || launch.cols % kTileColumns != 0) return false;
  for (int i = 0; i < launch.count; ++i) {
    const LinearMember& member = launch.members[i];
    const int runs = member.group_runs | member.first_group_runs;
    if (member.w.scale.has_min || runs % kRunsOfTile != 0) return false;
  }
  return true;
}

// Of LinearTilesKernel: two on each multiprocessor.
inline cudaError_t BlocksAtOnce(unsigned& blocks) {
  int device = 0, multiprocessors = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
  const cudaError_t error =
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  blocks = 2 * static_cast<unsigned>(multiprocessors);
  return error;
}

template <class Weights, int kBlocks>
cudaError_t LaunchLinearBlocks(LinearLaunch launch, cudaStream_t stream) {
  launch.warps_per_tile = kLinearWarps;
  if (launch.segmented && launch.segments > 0) {
    while (launch.warps_per_tile > launch.segments) launch.warps_per_tile /= 2;
  }
  const int rows = 16 * kLinearWarps / launch.warps_per_tile;  // of a block
  const dim3 threads(32 * kLinearWarps);
  unsigned blocks = 0;
  if constexpr (Weights::kUnrolled && kBlocks < 4) {
    // Two row tiles a warp, unless that leaves a part of the device without blocks.
    unsigned full = 0;
    if (const cudaError_t error = BlocksAtOnce(full); error != cudaSuccess) return error;
    if (CellsAreTiles(launch) && ShareOut(2 * rows, 8 * kBlocks, launch, blocks) && blocks > 0 &&
        blocks >= full) {
      return LAUNCH_KERNEL_EARLY((LinearTilesKernel<Weights, kBlocks, 2, true>), dim3(blocks),
                                 threads, 0, stream, launch);
    }
  }
  if (!ShareOut(rows, 8 * kBlocks, launch, blocks)) return cudaErrorInvalidValue;
  if (blocks == 0) return cudaSuccess;
  if constexpr (Weights::kUnrolled) {
    if (CellsAreTiles(launch)) {
      return LAUNCH_KERNEL_EARLY((LinearTilesKernel<Weights, kBlocks, 1, true>), dim3(blocks),
                                 threads, 0, stream, launch);
    }
  }
  return LAUNCH_KERNEL_EARLY((LinearTilesKernel<Weights, kBlocks, 1, false>), dim3(blocks), threads,
                             0, stream, launch);
}

// kMostBlocks: of 8 tokens at once in the kernel for few, as registers allow.
template <class Weights, int kMostBlocks>
cudaError_t LaunchLinearWith(LinearLaunch launch, cudaStream_t stream) {
  if (launch.m <= 0) return cudaSuccess;
  if (launch.m <= 8) return LaunchLinearBlocks<Weights, 1>(launch, stream);
  if (launch.m <= 16) return LaunchLinearBlocks<Weights, 2>(launch, stream);
  // The bits are the same.
  unsigned blocks = 0;
  if (launch.m > kLargeTokens && launch.cols > 0 &&
      ShareOut(16 * kLinearWarps, kLargeTokens, launch, blocks) && IsForMany(launch.m, blocks)) {
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
