// y = W x in integers for few tokens. A block of 8 warps has two row tiles, four warps each, which
// take tiles of 64 columns in turn: so many loads are under way, though the order of summation is
// one chain over all of K. A round is four tiles: each warp puts its cells' terms into shared
// memory, then each thread of the block takes the terms of its own outputs in order.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear_a8_tiles.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {

constexpr int kA8SplitWarps = 4;  // of a row tile
constexpr int kA8SplitTiles = kA8Warps / kA8SplitWarps;

// y = fma(x, y, y_before)
using A8Term = float2;

// Terms of a cell: one, and with minima another.
template <int kBlocks>
constexpr size_t A8SplitBytes(int cells, bool has_min) {
  return size_t{kA8Warps} * cells * (has_min ? 2 : 1) * (4 * kBlocks * 32) * sizeof(A8Term);
}

// A lane's tokens of 8 kBlocks from global memory. Beyond the last token that one again, for
// nobody.
template <int kBlocks, bool kPairs>
class A8GlobalTokens {
 public:
  __device__ __forceinline__ A8GlobalTokens(const LinearA8Launch& launch, int first_token, int lane)
      : first_(launch.records + first_token * launch.row_bytes) {
    const int left = launch.m - first_token;
    const auto offset = [&](int token) {
      return (token < left ? token : left - 1) * static_cast<int>(launch.row_bytes);
    };
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      q_[block] = offset(8 * block + lane / 4) + lane % 4 * 16;
#pragma unroll
      for (int i = 0; i < 2; ++i)
        about_[block][i] = offset(8 * block + lane % 4 * 2 + i) + kA8TileCols;
    }
  }
  __device__ __forceinline__ void Load(int tile, A8Tokens (&to)[kBlocks]) const {
    const uint8_t* const from = first_ + int64_t{tile} * kA8RecordBytes;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      to[block].q = *reinterpret_cast<const uint4*>(from + q_[block]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint8_t* const about = from + about_[block][i];
        to[block].pairs[i] = *reinterpret_cast<const uint4*>(about);
        if constexpr (!kPairs) to[block].runs[i] = *reinterpret_cast<const uint4*>(about + 16);
      }
    }
  }

 private:
  const uint8_t* const first_;
  int q_[kBlocks], about_[kBlocks][2];  // bytes
};

// One cell's terms for all tokens, to `terms`: [value of a lane][lane].
template <int kCell, int kBlocks, class Weights>
__device__ __forceinline__ void PutTerms(const Weights& weights, const A8Tokens (&tokens)[kBlocks],
                                         bool has_min, int lane, A8Term (*terms)[32]) {
  constexpr bool kPair = Weights::kCells < kA8TileRuns;
  constexpr int kRun = kCell * (kA8TileRuns / Weights::kCells);
  uint32_t a[4];
  weights.template Operand<kCell>(a);
  PairNumbers numbers;
  weights.template Numbers<kCell>(numbers);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const A8Cell cell = CellOf<kRun, kPair>(tokens[block]);
    int32_t sums[4] = {kA8Start, kA8Start, kA8Start, kA8Start};
    AddCell<kRun, kPair>(a, numbers.zero, cell, tokens[block].q, sums);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      terms[4 * block + i][lane] =
          make_float2(A8SumOf(sums[i]), __fmul_rn(numbers.scale[i / 2], cell.scale[i % 2]));
    }
    if (!has_min) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x_sum = A8XSum(cell.scale[i % 2], cell.sum[i % 2]);
      terms[4 * kBlocks + 4 * block + i][lane] = make_float2(numbers.min[i / 2], x_sum);
    }
  }
}

// One thread's outputs: value `part` of each block of tokens of its lane.
template <int kBlocks>
class A8Chain {
 public:
  __device__ __forceinline__ A8Chain(const LinearA8Launch& launch, const LinearMember& member,
                                     int row_tile, int first_token, int part, int lane,
                                     int cell_runs)
      : launch_(launch),
        member_(member),
        row_(row_tile * 16 + lane / 4 + part / 2 * 8),
        token_(first_token + lane % 4 * 2 + part % 2),
        lane_(lane),
        cell_runs_(cell_runs) {
    FindSegmentEnd();
  }

  // The terms of cells [first, first + cells), `cell_terms` each, at their values of this thread.
  __device__ __forceinline__ void Add(int first, int cells, int cell_terms, A8Term (*terms)[32]) {
    for (int cell = 0; cell < cells;) {
      const int stop = min(cells, segment_end_ - first);
#pragma unroll 8
      for (int term = cell * cell_terms; term < stop * cell_terms; ++term) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          const A8Term at = terms[4 * kBlocks * term + 4 * block][lane_];
          y_[block] = fmaf(at.x, at.y, y_[block]);
        }
      }
      cell = stop;
      if (first + cell == segment_end_) EndSegment();
    }
  }
  __device__ __forceinline__ void Store() const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      StoreOutput(launch_, member_, row_, token_ + 8 * block, y_[block], sum_[block]);
  }

 private:
  __device__ __forceinline__ void FindSegmentEnd() {
    const int end = A8SegmentEnd(launch_, segment_);  // of the last one any run
    segment_end_ = end == INT_MAX ? end : (end + cell_runs_ - 1) / cell_runs_;
  }
  __device__ __forceinline__ void EndSegment() {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      AddFixed(launch_, member_, row_, token_ + 8 * block, y_[block], sum_[block]);
      y_[block] = 0;
    }
    ++segment_;
    FindSegmentEnd();
  }

  const LinearA8Launch& launch_;
  const LinearMember& member_;
  const int row_, token_, lane_, cell_runs_;
  float y_[kBlocks] = {};
  long long sum_[kBlocks] = {};
  int segment_ = 0, segment_end_ = 0;  // in cells
};

// REQUIRES: cells are pairs of runs, or runs (kPairs).
template <int kBits, int kBlocks, bool kPairs>
__global__ void __launch_bounds__(32 * kA8Warps, 2)
    LinearA8SplitKernel(const __grid_constant__ LinearA8Launch launch) {
  DYNAMIC_SHARED(A8Term, shared);
  // As registers allow.
  constexpr bool kLarge = kBlocks > 1 && (kBits == 6 || kBits == 7);
  constexpr int kAhead = kBlocks == 1 && kPairs ? (kBits <= 5 ? 3 : 2) : kLarge ? 0 : 1;
  using Weights = A8Weights<kBits, kPairs, kAhead>;
  constexpr int kCells = Weights::kCells;
  GridDependencyLaunch();
  const A8Warp own = WarpOfA8Block<8 * kBlocks, kA8SplitWarps>(launch);
  const int part = own.warp % kA8SplitWarps, lane = own.lane;
  const bool has_min = own.member.w.scale.has_min;
  const int cell_terms = has_min ? 2 : 1;
  // Of this row tile: [cell of the round][term][value][lane].
  const int cell_rows = cell_terms * 4 * kBlocks;
  A8Term(*const terms)[32] = reinterpret_cast<A8Term(*)[32]>(shared) +
                             own.warp / kA8SplitWarps * (kA8SplitWarps * kCells * cell_rows);

  Weights weights(own.member, own.has_rows ? own.row_tile : 0, part, kA8SplitWarps,
                  own.has_rows ? own.runs : 0, lane);
  GridDependencyWait();
  const A8GlobalTokens<kBlocks, kPairs> source(launch, own.first_token, lane);
  A8Chain<kBlocks> chain(launch, own.member, own.row_tile, own.first_token, part, lane,
                         kA8TileRuns / kCells);
  for (int first = 0; first < own.tiles; first += kA8SplitWarps) {
    weights.LoadAhead();
    const int cells = weights.Cells();
    if (cells > 0) {
      A8Tokens tokens[kBlocks];
      source.Load(first + part, tokens);
      A8Term(*const to)[32] = terms + part * kCells * cell_rows;
      PutTerms<0>(weights, tokens, has_min, lane, to);
      if (cells > 1) PutTerms<1>(weights, tokens, has_min, lane, to + cell_rows);
      if constexpr (!kPairs) {
        if (cells > 2) PutTerms<2>(weights, tokens, has_min, lane, to + 2 * cell_rows);
        if (cells > 3) PutTerms<3>(weights, tokens, has_min, lane, to + 3 * cell_rows);
      }
    }
    weights.Shift();
    __syncthreads();
    if (own.has_rows) {
      constexpr int kRoundCells = kA8SplitWarps * kCells;
      const int all = (own.runs + kA8TileRuns / kCells - 1) / (kA8TileRuns / kCells);
      chain.Add(first * kCells, min(kRoundCells, all - first * kCells), cell_terms, terms + part);
    }
    __syncthreads();
  }
  if (own.has_rows) chain.Store();
}

}  // namespace bitshard::cuda
