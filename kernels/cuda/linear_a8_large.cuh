// y = W x in integers for many tokens: a block has 128 rows x 64 tokens, a warp 16 rows and all of
// K, so that the one chain over K stays in its registers.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear_a8_ring.cuh"
#include "kernels/cuda/linear_a8_tiles.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {

constexpr int kA8LargeBlocks = 8;
constexpr int kA8LargeTokens = 8 * kA8LargeBlocks;

// A lane's int64 sums, where there are segments.
using A8LaneSums = long long[4 * kA8LargeBlocks][32];
constexpr size_t A8LargeBytes(bool segmented) {
  return A8Ring<kA8LargeTokens>::kBytes + (segmented ? kA8Warps * sizeof(A8LaneSums) : 0);
}

// One warp's outputs: value 4 b + i is of row g + i / 2 * 8 and token 8 b + 2 t + i % 2.
class A8WarpRows {
 public:
  __device__ __forceinline__ A8WarpRows(const LinearA8Launch& launch, const LinearMember& member,
                                        int row_tile, int first_token, int lane, A8LaneSums& sums)
      : launch_(launch),
        member_(member),
        row_(int64_t{row_tile} * 16 + lane / 4),
        token_(first_token + lane % 4 * 2),
        lane_(lane),
        sums_(sums) {
    if (!launch_.segmented) return;
#pragma unroll
    for (int i = 0; i < 4 * kA8LargeBlocks; ++i) sums_[i][lane_] = 0;
  }

  // Both cells of a tile, in straight lines: the blocks' chains run side by side.
  template <bool kMin>
  __device__ __forceinline__ void AddTile(const uint32_t (&a)[2][4],
                                          const PairNumbers (&numbers)[2],
                                          const A8Ring<kA8LargeTokens>& ring) {
#pragma unroll
    for (int block = 0; block < kA8LargeBlocks; ++block) {
      A8Tokens tokens;
      ring.Read</*kPairs=*/true>(block, lane_, tokens);
      Add<0, kMin>(a[0], numbers[0], tokens, y_[block]);
      Add<1, kMin>(a[1], numbers[1], tokens, y_[block]);
    }
  }
  // One of them, for tiles in which a segment or the row ends.
  template <int kCell>
  __device__ __forceinline__ void AddCell(const uint32_t (&a)[4], const PairNumbers& numbers,
                                          const A8Ring<kA8LargeTokens>& ring) {
#pragma unroll
    for (int block = 0; block < kA8LargeBlocks; ++block) {
      A8Tokens tokens;
      ring.Read</*kPairs=*/true>(block, lane_, tokens);
      if (member_.w.scale.has_min) {
        Add<kCell, true>(a, numbers, tokens, y_[block]);
      } else {
        Add<kCell, false>(a, numbers, tokens, y_[block]);
      }
    }
  }
  __device__ __forceinline__ void EndSegment() {
#pragma unroll
    for (int block = 0; block < kA8LargeBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        AddFixed(launch_, member_, row_ + i / 2 * 8, Token(block, i), y_[block][i],
                 sums_[4 * block + i][lane_]);
        y_[block][i] = 0;
      }
    }
  }
  __device__ __forceinline__ void Store() const {
#pragma unroll
    for (int block = 0; block < kA8LargeBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        StoreOutput(launch_, member_, row_ + i / 2 * 8, Token(block, i), y_[block][i],
                    launch_.segmented ? sums_[4 * block + i][lane_] : 0);
      }
    }
  }

 private:
  template <int kCell, bool kMin>
  static __device__ __forceinline__ void Add(const uint32_t (&a)[4], const PairNumbers& numbers,
                                             const A8Tokens& tokens, float (&y)[4]) {
    const A8Cell cell = CellOf<2 * kCell, /*kPair=*/true>(tokens);
    int32_t sums[4] = {kA8Start, kA8Start, kA8Start, kA8Start};
    cuda::AddCell<2 * kCell, /*kPair=*/true>(a, numbers.zero, cell, tokens.q, sums);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      y[i] = fmaf(A8SumOf(sums[i]), __fmul_rn(numbers.scale[i / 2], cell.scale[i % 2]), y[i]);
    if constexpr (kMin) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        y[i] = fmaf(numbers.min[i / 2], A8XSum(cell.scale[i % 2], cell.sum[i % 2]), y[i]);
    }
  }
  __device__ __forceinline__ int Token(int block, int i) const {
    return token_ + 8 * block + i % 2;
  }

  const LinearA8Launch& launch_;
  const LinearMember& member_;
  const int64_t row_;
  const int token_, lane_;
  A8LaneSums& sums_;
  float y_[kA8LargeBlocks][4] = {};
};

// REQUIRES: cells are pairs of runs.
template <int kBits>
__global__ void __launch_bounds__(32 * kA8Warps, 1)
    LinearA8LargeKernel(const __grid_constant__ LinearA8Launch launch) {
  DYNAMIC_SHARED(long long, shared);
  using Weights = A8Weights<kBits, /*kPairs=*/true, /*kAhead=*/1>;
  GridDependencyLaunch();
  // A warp without rows only loads activations for the others.
  const A8Warp own = WarpOfA8Block<kA8LargeTokens>(launch);

  Weights weights(own.member, own.has_rows ? own.row_tile : 0, 0, 1, own.has_rows ? own.runs : 0,
                  own.lane);
  uint8_t* const stages = reinterpret_cast<uint8_t*>(shared);
  A8LaneSums* const sums =
      reinterpret_cast<A8LaneSums*>(stages + A8Ring<kA8LargeTokens>::kBytes) + own.warp;
  A8WarpRows rows(launch, own.member, own.row_tile, own.first_token, own.lane, *sums);
  GridDependencyWait();
  A8Ring<kA8LargeTokens> ring(launch, own.first_token, own.tiles, stages);
  int segment = 0, segment_end = A8SegmentEnd(launch, 0);
  for (int tile = 0; tile < own.tiles; ++tile) {
    ring.Next();
    if (!own.has_rows) continue;
    weights.LoadAhead();
    const bool both = weights.Cells() > 1;
    uint32_t a[2][4];
    PairNumbers numbers[2];
    weights.template Operand<0>(a[0]);
    weights.template Operand<1>(a[1]);
    weights.template Numbers<0>(numbers[0]);
    weights.template Numbers<1>(numbers[1]);
    const int run = tile * kA8TileRuns;
    if (both && run + 2 < segment_end) {
      if (own.member.w.scale.has_min) {
        rows.AddTile<true>(a, numbers, ring);
      } else {
        rows.AddTile<false>(a, numbers, ring);
      }
    } else {
      rows.AddCell<0>(a[0], numbers[0], ring);
      if (run + 2 >= segment_end) {
        rows.EndSegment();
        segment_end = A8SegmentEnd(launch, ++segment);
      }
      if (both) rows.AddCell<1>(a[1], numbers[1], ring);
    }
    if (both && run + 4 >= segment_end) {
      rows.EndSegment();
      segment_end = A8SegmentEnd(launch, ++segment);
    }
    weights.Shift();
  }
  if (own.has_rows) rows.Store();
}

}  // namespace bitshard::cuda
