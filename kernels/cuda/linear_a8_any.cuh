// y = W x in integers where cells are neither pairs of runs nor runs: segments of an odd number of
// runs, weight groups that begin or end in the middle of an activation group. A block has 128 rows
// x 16 tokens, a warp 16 rows and all of K, run by run.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear_a8_ring.cuh"
#include "kernels/cuda/linear_a8_tiles.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {

constexpr int kA8AnyBlocks = 2;
constexpr int kA8AnyTokens = 8 * kA8AnyBlocks;

// One warp's walk through its cells; outputs as A8WarpRows.
class A8AnyCells {
 public:
  __device__ __forceinline__ A8AnyCells(const LinearA8Launch& launch, const LinearMember& member,
                                        int row_tile, int first_token, int lane)
      : launch_(launch),
        member_(member),
        row_(int64_t{row_tile} * 16 + lane / 4),
        token_(first_token + lane % 4 * 2) {
    const int group = member.group_runs == 0 ? 0 : member.first_group_runs / member.group_runs;
    scales_ = AnyScales(member.w.scale, row_tile, lane, group);
    group_end_ = member.group_runs == 0 ? INT_MAX
                                        : (group + 1) * member.group_runs - member.first_group_runs;
    segment_end_ = A8SegmentEnd(launch_, 0);
    scales_.Next(numbers_);
    OpenCell();
    cell_end_ = EndOfCell(0);
  }

  // Runs in order. `tokens` of each block, of its tile.
  template <int kBits, int kRun>
  __device__ __forceinline__ void Add(int run, const uint32_t (&words)[kBits],
                                      const A8Tokens (&tokens)[kA8AnyBlocks]) {
    if (run == cell_end_) NextCell(run);
    uint32_t a[4];
    CodeOperand<kBits, kRun, /*kPair=*/false>(words, a);
#pragma unroll
    for (int block = 0; block < kA8AnyBlocks; ++block) {
      const A8Cell cell = CellOf<kRun, /*kPair=*/false>(tokens[block]);
      AddCell<kRun, /*kPair=*/false>(a, numbers_.zero, cell, tokens[block].q, sums_[block]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        x_scale_[block][i] = cell.scale[i];
        x_sum_[block][i] += cell.sum[i];
      }
    }
  }
  __device__ __forceinline__ void Store() {
    if (launch_.cols > 0) {
      CloseCell();
      if (launch_.segmented) EndSegment();
    }
#pragma unroll
    for (int block = 0; block < kA8AnyBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        StoreOutput(launch_, member_, row_ + i / 2 * 8, Token(block, i), y_[block][i],
                    fixed_[block][i]);
      }
    }
  }

 private:
  __device__ __forceinline__ int Token(int block, int i) const {
    return token_ + 8 * block + i % 2;
  }
  __device__ __forceinline__ int EndOfCell(int run) const {
    const int end = group_end_ < segment_end_ ? group_end_ : segment_end_;
    const int in_segment = run - segment_begin_;
    const int x_end = segment_begin_ + (in_segment / kA8GroupRuns + 1) * kA8GroupRuns;
    return x_end < end ? x_end : end;
  }
  __device__ __forceinline__ void NextCell(int run) {
    CloseCell();
    if (run == segment_end_) {
      EndSegment();
      segment_begin_ = segment_end_;
      segment_end_ = A8SegmentEnd(launch_, ++segment_);
    }
    if (run == group_end_) {
      group_end_ += member_.group_runs;
      scales_.Next(numbers_);
    }
    OpenCell();
    cell_end_ = EndOfCell(run);
  }
  __device__ __forceinline__ void OpenCell() {
#pragma unroll
    for (int block = 0; block < kA8AnyBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[block][i] = kA8Start;
      x_sum_[block][0] = x_sum_[block][1] = 0;
    }
  }
  __device__ __forceinline__ void CloseCell() {
#pragma unroll
    for (int block = 0; block < kA8AnyBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x_scale = x_scale_[block][i % 2];
        float& y = y_[block][i];
        y = fmaf(A8SumOf(sums_[block][i]), __fmul_rn(numbers_.scale[i / 2], x_scale), y);
        if (!member_.w.scale.has_min) continue;
        y = fmaf(numbers_.min[i / 2], A8XSum(x_scale, x_sum_[block][i % 2]), y);
      }
    }
  }
  __device__ __forceinline__ void EndSegment() {
#pragma unroll
    for (int block = 0; block < kA8AnyBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        AddFixed(launch_, member_, row_ + i / 2 * 8, Token(block, i), y_[block][i],
                 fixed_[block][i]);
        y_[block][i] = 0;
      }
    }
  }

  const LinearA8Launch& launch_;
  const LinearMember& member_;
  const int64_t row_;
  const int token_;
  AnyScales scales_;
  PairNumbers numbers_ = {};
  int32_t sums_[kA8AnyBlocks][4], x_sum_[kA8AnyBlocks][2];
  float x_scale_[kA8AnyBlocks][2] = {};
  float y_[kA8AnyBlocks][4] = {};
  long long fixed_[kA8AnyBlocks][4] = {};
  int segment_ = 0, segment_begin_ = 0, segment_end_ = 0, group_end_ = 0, cell_end_ = 0;
};

template <int kBits>
__global__ void __launch_bounds__(32 * kA8Warps, 1)
    LinearA8AnyKernel(const __grid_constant__ LinearA8Launch launch) {
  SHARED_ARRAY(uint8_t, stages, [A8Ring<kA8AnyTokens>::kBytes]);
  GridDependencyLaunch();
  // A warp without rows only loads activations for the others.
  const A8Warp own = WarpOfA8Block<kA8AnyTokens>(launch);

  GridDependencyWait();
  const int row_tile = own.has_rows ? own.row_tile : 0;
  A8AnyCells cells(launch, own.member, row_tile, own.first_token, own.lane);
  A8Ring<kA8AnyTokens> ring(launch, own.first_token, own.tiles, stages);
  const uint8_t* const codes = own.member.w.codes + row_tile * own.member.w.tile_bytes;
  for (int tile = 0; tile < own.tiles; ++tile) {
    ring.Next();
    if (!own.has_rows) continue;
    uint32_t words[kBits];
    LoadTile<kBits>(codes + int64_t{tile} * (128 * kBits), own.lane, words);
    A8Tokens tokens[kA8AnyBlocks];
#pragma unroll
    for (int block = 0; block < kA8AnyBlocks; ++block)
      ring.template Read</*kPairs=*/false>(block, own.lane, tokens[block]);
    const int run = tile * kA8TileRuns;
    cells.template Add<kBits, 0>(run, words, tokens);
    if (run + 1 < own.runs) cells.template Add<kBits, 1>(run + 1, words, tokens);
    if (run + 2 < own.runs) cells.template Add<kBits, 2>(run + 2, words, tokens);
    if (run + 3 < own.runs) cells.template Add<kBits, 3>(run + 3, words, tokens);
  }
  if (own.has_rows) cells.Store();
}

}  // namespace bitshard::cuda
