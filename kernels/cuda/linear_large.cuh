// y = W x for many tokens: a block has 128 rows x 64 tokens, a warp 16 rows and all of K.
// Activations come through a ring in shared memory, once for all warps; weights as in
// linear_tiles.cuh. Order of summation, and so the bits: linear_cells.cuh.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_cells.cuh"
#include "kernels/cuda/ptx/cp_async.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {

constexpr int kLargeBlocks = 8;
constexpr int kLargeTokens = 8 * kLargeBlocks;
constexpr int kStages = 3;
// Halves between tokens: lanes of four tokens that read at once hit different banks.
constexpr int kStageRow = kTileColumns + 16;
constexpr int kStageHalves = kLargeTokens * kStageRow;

constexpr size_t kLargeSlotBytes = kLinearWarps * 4 * kLargeBlocks * 32 * sizeof(long long);
constexpr size_t kLargeSharedBytes = kLargeSlotBytes + kStages * kStageHalves * sizeof(uint16_t);

// All threads: activations of a tile of 64 columns into their stage.
__device__ __forceinline__ void LoadStage(const LinearLaunch& launch, int first_token, int tile,
                                          uint16_t* stage) {
  constexpr int kChunk = 8;  // halves in 16 bytes
  constexpr int kChunks = kTileColumns / kChunk;
  constexpr int kThreads = 32 * kLinearWarps;
  static_assert(kLargeTokens * kChunks % kThreads == 0);
#pragma unroll
  for (int i = 0; i < kLargeTokens * kChunks / kThreads; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = at / kChunks, chunk = at % kChunks;
    const bool there = first_token + row < launch.m;
    const int64_t token = there ? first_token + row : 0;
    CpAsync16(
        stage + row * kStageRow + chunk * kChunk,
        launch.half + token * launch.padded_cols + int64_t{tile} * kTileColumns + chunk * kChunk,
        there ? 16 : 0);
  }
}

// Activations of one tile as B operands, from their stage.
class TokensInStage {
 public:
  __device__ __forceinline__ TokensInStage(const uint16_t* stage, int lane)
      : from_(stage + lane / 4 * kStageRow + lane % 4 * 4) {}
  template <int kRun>
  __device__ __forceinline__ void Read(uint2 (&b)[kLargeBlocks]) const {
#pragma unroll
    for (int block = 0; block < kLargeBlocks; ++block)
      b[block] = *reinterpret_cast<const uint2*>(from_ + 8 * block * kStageRow + 16 * kRun);
  }
  template <int kRun>
  __device__ __forceinline__ void Refill() const {}

 private:
  const uint16_t* const from_;
};

// REQUIRES: cols > 0.
template <class Weights>
__global__ void __launch_bounds__(32 * kLinearWarps, 1)
    LinearLargeKernel(const __grid_constant__ LinearLaunch launch) {
  DYNAMIC_SHARED(long long, shared);
  GridDependencyLaunch();
  const int warp = WarpOfBlock(), lane = static_cast<int>(threadIdx.x) % 32;
  const LaneSlots slots = reinterpret_cast<LaneSlots>(shared) + warp * 4 * kLargeBlocks;
  uint16_t* const stages =
      reinterpret_cast<uint16_t*>(shared + kLargeSlotBytes / sizeof(long long));
  const BlockShare share = ShareOfBlock(launch, kLargeTokens);
  const LinearMember& member = share.member;
  const int first_token = share.first_token;
  const int first_row_tile = share.unit * kLinearWarps;
  const bool has_rows = int64_t{first_row_tile + warp} * 16 < member.w.rows;
  const int runs = static_cast<int>((launch.cols + 15) / 16);
  const int tiles = (runs + kRunsOfTile - 1) / kRunsOfTile;

  // A warp without rows only loads activations for the others.
  const int row_tile = has_rows ? first_row_tile + warp : first_row_tile;
#pragma unroll
  for (int i = 0; i < 4 * kLargeBlocks; ++i) slots[i][lane] = EmptySlot(launch);
  WarpCells<Weights, 1, kLargeBlocks, CellRange::kAllParts> cells(
      launch, member, row_tile, first_token, 0, runs, lane, slots);
  const uint8_t* const codes[1] = {member.w.codes + row_tile * member.w.tile_bytes};
  WeightTiles<Weights, 1, StagesFor(Weights::kWords, 14, 4)> weights(codes, 0, has_rows ? runs : 0,
                                                                     lane);
  cells.OpenGroup();
  GridDependencyWait();
  cells.OpenSegment(0);
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < tiles) LoadStage(launch, first_token, stage, stages + stage * kStageHalves);
    CpAsyncCommit();
  }
  int stage = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    CpAsyncWait<kStages - 2>();
    __syncthreads();  // the stage is there for all, and all are done with the one before it
    const int before = stage == 0 ? kStages - 1 : stage - 1;
    if (tile + kStages - 1 < tiles)
      LoadStage(launch, first_token, tile + kStages - 1, stages + before * kStageHalves);
    CpAsyncCommit();
    if (has_rows) {
      TokensInStage tokens(stages + stage * kStageHalves, lane);
      cells.Multiply(tile, weights.Stage(0), tokens);
      weights.Shift();
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  if (!has_rows) return;
  cells.Close();
#pragma unroll
  for (int i = 0; i < 4 * kLargeBlocks; ++i) {
    StoreSlot(launch, member, int64_t{row_tile} * 16 + lane / 4 + i % 4 / 2 * 8,
              first_token + i / 4 * 8 + lane % 4 * 2 + i % 2, slots[i][lane]);
  }
}

}  // namespace bitshard::cuda
