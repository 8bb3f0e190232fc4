// y = W x for few tokens: all of a row tile's K in one block of 8 warps, each with some of the
// parts or segments, brought together through shared memory. Where there are few segments the block
// takes several row tiles; where there are many rows a warp takes two at once, which share each
// load of activations. Order of summation: linear_cells.cuh.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_cells.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {

// Activations of 8 kBlocks tokens as B operands, from global memory, kAhead runs ahead of their
// use.
template <int kBlocks, int kAhead>
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
#pragma unroll
    for (int run = 0; run < kAhead; ++run) Load(run, b_[run]);
  }
  // What Read and Refill are about: the tile that lies `tile` on from where Advance came to.
  // `more`: there is one after it.
  __device__ __forceinline__ void SetTile(int tile, bool more) {
    tile_ = tile;
    more_ = more;
  }
  __device__ __forceinline__ void Advance(int tiles) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) from_[block] += tiles * kTileColumns;
  }
  template <int kRun>
  __device__ __forceinline__ void Read(uint2 (&b)[kBlocks]) const {
    if constexpr (kAhead == 0) {
      Load(kRunsOfTile * tile_ + kRun, b);
    } else {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) b[block] = b_[kRun % kAhead][block];
    }
  }
  template <int kRun>
  __device__ __forceinline__ void Refill() {
    if constexpr (kAhead > 0) {
      if (kRun + kAhead < kRunsOfTile || more_)
        Load(kRunsOfTile * tile_ + kRun + kAhead, b_[kRun % kAhead]);
    }
  }

 private:
  __device__ __forceinline__ void Load(int run, uint2 (&b)[kBlocks]) const {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block)
      b[block] = *reinterpret_cast<const uint2*>(from_[block] + 16 * run);
  }

  const uint16_t* from_[kBlocks];
  int tile_ = 0;
  bool more_ = false;
  uint2 b_[kAhead == 0 ? 1 : kAhead][kBlocks] = {};
};

// Words of weights that a lane has on their way while it computes a tile of `words` words, as
// registers allow. A multiprocessor has 512 lanes at once, so 24 words are 48 KB; a memory of 5
// TB/s and 700 ns has 26 KB on its way to each of 132 multiprocessors.
constexpr int WordsAhead(bool unrolled, int blocks, int words) {
  if (unrolled) return blocks == 1 ? 24 : blocks == 2 ? 12 : 8;
  if (blocks == 1) return 14;
  if (blocks == 2) return words == 7 ? 7 : 12;  // 7 are three chunks, each with its address
  return words > 4 ? 0 : 4;
}

// The tiles of one warp, runs [begin, end), of which the first is in `segment`.
template <bool kUnrolled, class Weights, int kRows, int kBlocks, class Cells>
__device__ __forceinline__ void SumTiles(const LinearLaunch& launch, const LinearMember& member,
                                         int begin, int end, int segment, int first_token, int lane,
                                         Cells& cells) {
  constexpr int kWords = kRows * Weights::kWords;
  constexpr int kStages =
      StagesFor(kWords, WordsAhead(kUnrolled, kBlocks, kWords), kUnrolled ? 6 : 4);
  const int first = begin / kRunsOfTile;
  const uint8_t* codes[kRows];
#pragma unroll
  for (int row = 0; row < kRows; ++row)
    codes[row] = member.w.codes + cells.RowTile(row) * member.w.tile_bytes;
  WeightTiles<Weights, kRows, kStages> weights(codes, first, end, lane);
  cells.OpenGroup();
  GridDependencyWait();
  cells.OpenSegment(segment);
  constexpr int kAhead = kBlocks == 1 || (kBlocks == 2 && !kUnrolled) ? 4 : 0;
  TokensInGlobal<kBlocks, kAhead> tokens(launch, first_token, lane, first);
  if constexpr (kUnrolled) {
    cells.MultiplyTiles(weights, tokens);
  } else {
    const int last = (end + kRunsOfTile - 1) / kRunsOfTile;
    for (int tile = first; tile < last; ++tile) {
      tokens.SetTile(0, tile + 1 < last);
      cells.Multiply(tile, weights.Stage(0), tokens);
      tokens.Advance(1);
      weights.Shift();
    }
  }
  cells.Close();
}

// Adds up what the warps of a row tile found for one output; i counts those of the block.
template <int kRows, int kBlocks>
__device__ __forceinline__ void FoldOutput(const LinearLaunch& launch, const LinearMember& member,
                                           int first_row_tile, int first_token, int i,
                                           long long (*slots)[4 * kBlocks * kRows][32]) {
  const int lane = i % 32, value = i / 32 % (4 * kBlocks), tile = i / (128 * kBlocks);
  const int slot = tile % kRows * 4 * kBlocks + value;
  const int warps = launch.warps_per_tile, first = tile / kRows * warps;
  long long found = slots[first][slot][lane];
  for (int warp = first + 1; warp < first + warps; ++warp) {
    const long long next = slots[warp][slot][lane];
    if (launch.segmented) {
      found += next;
    } else {
      found = __float_as_uint(__uint_as_float(static_cast<uint32_t>(found)) +
                              __uint_as_float(static_cast<uint32_t>(next)));
    }
  }
  StoreSlot(launch, member, int64_t{first_row_tile + tile} * 16 + lane / 4 + value % 4 / 2 * 8,
            first_token + value / 4 * 8 + lane % 4 * 2 + value % 2, found);
}

// kRows: row tiles of a warp. kUnrolled: a whole K alone whose cells are whole tiles, without
// minima.
template <class Weights, int kBlocks, int kRows, bool kUnrolled>
__global__ void __launch_bounds__(32 * kLinearWarps, 2)
    LinearTilesKernel(const __grid_constant__ LinearLaunch launch) {
  SHARED_ARRAY(long long, slots, [kLinearWarps][4 * kBlocks * kRows][32]);
  GridDependencyLaunch();
  const int warp = WarpOfBlock(), lane = static_cast<int>(threadIdx.x) % 32;
  const BlockShare share = ShareOfBlock(launch, 8 * kBlocks);
  const LinearMember& member = share.member;
  const int first_token = share.first_token;
  const int warps = launch.warps_per_tile, tiles = kLinearWarps / warps * kRows;
  const int first_row_tile = share.unit * tiles;

#pragma unroll
  for (int i = 0; i < 4 * kBlocks * kRows; ++i) slots[warp][i][lane] = EmptySlot(launch);
  // The runs of this warp.
  const int row_tile = first_row_tile + warp / warps * kRows;
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
    WarpCells<Weights, kRows, kBlocks, kUnrolled ? CellRange::kTiles : CellRange::kAny> cells(
        launch, member, row_tile, first_token, begin, end, lane, slots[warp]);
    SumTiles<kUnrolled, Weights, kRows, kBlocks>(launch, member, begin, end, segment, first_token,
                                                 lane, cells);
  } else {
    GridDependencyWait();
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < tiles * 128 * kBlocks; i += 32 * kLinearWarps)
    FoldOutput<kRows, kBlocks>(launch, member, first_row_tile, first_token, i, slots);
}

}  // namespace bitshard::cuda
