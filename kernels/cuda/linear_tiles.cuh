// y = W x for few tokens: all of a row tile's K in one block of 8 warps, each with some of the
// parts or segments, brought together through shared memory. Where there are few segments the block
// takes several row tiles. Order of summation: linear_cells.cuh.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_cells.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {

// Activations of 8 kBlocks tokens as B operands, from global memory; two runs ahead of their use
// where registers allow.
template <int kBlocks>
class TokensInGlobal {
 public:
  __device__ __forceinline__ TokensInGlobal(const LinearLaunch& launch, int first_token, int lane,
                                            int tile) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int token = first_token + 8 * block + lane / 4;
      const int64_t there = token < launch.m ? token : launch.m - 1;
      from_[block] =
          launch.half + there * launch.padded_cols + int64_t{tile} * kTileColumns + lane % 4 * 4;
    }
    if constexpr (kAhead) {
      Load(0, b_[0][0]);
      Load(1, b_[0][1]);
    }
  }
  // `more`: there is a tile after this one.
  __device__ __forceinline__ void BeginTile(bool more) { more_ = more; }
  __device__ __forceinline__ void EndTile() {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) from_[block] += kTileColumns;
  }
  template <int kRun>
  __device__ __forceinline__ void Read(uint2 (&b)[kBlocks]) {
    if constexpr (!kAhead) {
      Load(kRun, b);
      return;
    }
    constexpr int kBuffer = kRun / 2;
    if (kRun == 0 || (kRun == 2 && more_)) {
      Load(kRun + 2, b_[1 - kBuffer][0]);
      Load(kRun + 3, b_[1 - kBuffer][1]);
    }
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) b[block] = b_[kBuffer][kRun % 2][block];
  }

 private:
  static constexpr bool kAhead = kBlocks < 4;

  __device__ __forceinline__ void Load(int run, uint2 (&b)[kBlocks]) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      b[block] = *reinterpret_cast<const uint2*>(from_[block] + 16 * run);
  }

  const uint16_t* from_[kBlocks];
  bool more_ = false;
  uint2 b_[2][2][kBlocks] = {};
};

// Adds up what the warps of a row tile found for one output; i counts those of the block.
template <int kBlocks>
__device__ __forceinline__ void FoldOutput(const LinearLaunch& launch, const LinearMember& member,
                                           int first_row_tile, int first_token, int i,
                                           long long (*slots)[4 * kBlocks][32]) {
  const int lane = i % 32, value = i / 32 % (4 * kBlocks), tile = i / (128 * kBlocks);
  const int warps = launch.warps_per_tile, first = tile * warps;
  long long found = slots[first][value][lane];
  for (int warp = first + 1; warp < first + warps; ++warp) {
    const long long next = slots[warp][value][lane];
    if (launch.segmented) {
      found += next;
    } else {
      found = __float_as_uint(__uint_as_float(static_cast<uint32_t>(found)) +
                              __uint_as_float(static_cast<uint32_t>(next)));
    }
  }
  StoreOutput(launch, member, int64_t{first_row_tile + tile} * 16 + lane / 4 + value % 4 / 2 * 8,
              first_token + value / 4 * 8 + lane % 4 * 2 + value % 2, found);
}

template <class Weights, int kBlocks>
__global__ void __launch_bounds__(32 * kLinearWarps, 2)
    LinearTilesKernel(const __grid_constant__ LinearLaunch launch) {
  SHARED_ARRAY(long long, slots, [kLinearWarps][4 * kBlocks][32]);
  GridDependencyLaunch();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // Tokens are the fastest: those who read the same weights run at about the same time.
  const int unit = static_cast<int>(blockIdx.x) / launch.token_chunks;
  const int first_token = static_cast<int>(blockIdx.x) % launch.token_chunks * (8 * kBlocks);
  const int index = MemberOfUnit(launch, unit);
  const LinearMember& member = launch.members[index];
  const int warps = launch.warps_per_tile, tiles = kLinearWarps / warps;
  const int first_row_tile = (unit - launch.first_unit[index]) * tiles;

#pragma unroll
  for (int i = 0; i < 4 * kBlocks; ++i) slots[warp][i][lane] = EmptySlot(launch);
  // The runs of this warp.
  const int row_tile = first_row_tile + warp / warps;
  const int part = warp % warps;
  int begin, end, segment = part;
  if (launch.segmented) {
    segment = launch.segments * part / warps;
    const int64_t next = launch.segments * (part + 1) / warps * launch.segment_cols;
    begin = static_cast<int>(segment * launch.segment_cols / 16);
    end = static_cast<int>(((next < launch.cols ? next : launch.cols) + 15) / 16);
  } else {
    const int runs = static_cast<int>((launch.cols + 15) / 16);
    begin = FirstRunOfPart(launch, part);
    end = FirstRunOfPart(launch, part + 1);
    if (end > runs) end = runs;
  }
  if (begin < end && int64_t{row_tile} * 16 < member.w.rows) {
    const int first = begin / kRunsOfTile, last = (end + kRunsOfTile - 1) / kRunsOfTile;
    WarpCells<Weights, kBlocks, /*kAllParts=*/false> cells(launch, member, row_tile, first_token,
                                                           begin, end, lane, slots[warp]);
    WeightTiles<Weights, kBlocks> weights(member.w.codes + row_tile * member.w.tile_bytes, first,
                                          end, lane);
    typename Weights::Scales scales = cells.OpenGroup();
    GridDependencyWait();
    cells.OpenSegment(segment);
    TokensInGlobal<kBlocks> tokens(launch, first_token, lane, first);
    for (int tile = first; tile < last; ++tile) {
      weights.LoadAhead();
      tokens.BeginTile(tile + 1 < last);
      cells.Multiply(tile, weights.Current(), tokens, scales);
      tokens.EndTile();
      weights.Shift();
    }
    cells.Close();
  } else {
    GridDependencyWait();
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < tiles * 128 * kBlocks; i += 32 * kLinearWarps)
    FoldOutput<kBlocks>(launch, member, first_row_tile, first_token, i, slots);
}

}  // namespace bitshard::cuda
