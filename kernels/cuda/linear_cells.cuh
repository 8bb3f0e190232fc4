// One warp's sums of 16 rows x 8 kBlocks tokens of y = W x, and with it the order of summation of
// all tensor-core kernels: for any number of tokens, any of those kernels, the same bits.
//
// A run is 16 columns, one mma; accumulators are f32.
//  - A cell is what a weight group, a segment and a part have in common. In it acc = 0, then the
//  mma of
//    each run in ascending k (bf16 weights: two, of the activation's two bf16 terms, which are
//    exact); then y = fma(acc, s_w * s_x, y), and with minima y = fma(min, s_x * X, y), X the run
//    sums added in ascending order. Cells of a part or segment ascending.
//  - Whole K: 8 parts, part p has tiles [T p / 8, T (p + 1) / 8) of the T tiles of 64 columns.
//  Those
//    that are not empty are added in ascending order, then the bias.
//  - Segments: each alone from y = 0, then to int64.
// An output depends on its row, its token and the cuts along K, on nothing else.
#pragma once

#include <climits>

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_weights.cuh"

namespace bitshard::cuda {

constexpr int kLinearWarps = 8;
constexpr int kParts = 8;
constexpr int kTileColumns = 16 * kRunsOfTile;

// First run of a part of a whole K; of part 8 the end.
__device__ __forceinline__ int FirstRunOfPart(const LinearLaunch& launch, int part) {
  return static_cast<int>(launch.padded_cols / kTileColumns * part / kParts) * kRunsOfTile;
}

// What a warp has found for its 16 rows and 8 kBlocks tokens: int64 sums of segments, or the bits
// of f32. Of each value the lane's own; in shared memory, which saves registers.
using LaneSlots = long long (*)[32];
// -0: adding to it changes nothing.
__device__ __forceinline__ long long EmptySlot(const LinearLaunch& launch) {
  return launch.segmented ? 0 : 0x80000000ll;
}

// Value i of block b is of row g + i / 2 * 8 and token 8 b + 2 t + i % 2 (g = lane / 4, t = lane %
// 4). Where there is no such token the last one is computed again, for nobody. kAllParts: goes
// through more than one part of a whole K.
template <class Weights, int kBlocks, bool kAllParts>
class WarpCells {
 public:
  using Scales = typename Weights::Scales;

  // Runs [begin, end) of a row tile.
  __device__ __forceinline__ WarpCells(const LinearLaunch& launch, const LinearMember& member,
                                       int row_tile, int first_token, int begin, int end, int lane,
                                       LaneSlots slots)
      : launch_(launch),
        member_(member),
        row_tile_(row_tile),
        first_token_(first_token),
        begin_(begin),
        end_(end),
        lane_(lane),
        half_1024_(launch.half_1024),
        slots_(slots) {}

  // Reads weights only.
  __device__ __forceinline__ Scales OpenGroup() {
    int group = 0;
    group_end_ = INT_MAX;
    if (member_.group_runs > 0) {
      group = (begin_ + member_.first_group_runs) / member_.group_runs;
      group_end_ = (group + 1) * member_.group_runs - member_.first_group_runs;
    }
    Scales scales(member_.w.scale, row_tile_, lane_, group);
    scales.Next(numbers_);
    weights_.SetZeros(numbers_);
    return scales;
  }
  // After OpenGroup; reads activations. The first run is in `segment`, or in part `segment`.
  __device__ __forceinline__ void OpenSegment(int segment) {
    segment_ = segment;
    BeginSegment();
    SetCell(begin_);
  }
  // After the last tile.
  __device__ __forceinline__ void Close() {
    CloseCell(end_);
    EndSegment();
  }

  // One tile, of which the runs from begin to end count. Tokens: x.Read<kRun>(b) gives the B
  // operands of a run; asked for all runs, in order.
  template <class Tokens>
  __device__ __forceinline__ void Multiply(int tile, const uint32_t (&words)[Weights::kWords],
                                           Tokens& x, Scales& scales) {
    const int run = tile * kRunsOfTile;
    if (run == cell_end_) NextCell(run, scales);
    if (run >= begin_ && run + kRunsOfTile <= cell_end_) {
      MultiplyRun<0>(words, x);
      MultiplyRun<1>(words, x);
      MultiplyRun<2>(words, x);
      MultiplyRun<3>(words, x);
    } else {
      MultiplyRunIfThere<0>(run, words, x, scales);
      MultiplyRunIfThere<1>(run + 1, words, x, scales);
      MultiplyRunIfThere<2>(run + 2, words, x, scales);
      MultiplyRunIfThere<3>(run + 3, words, x, scales);
    }
  }

 private:
  template <int kRun, class Tokens>
  __device__ __forceinline__ void MultiplyRun(const uint32_t (&words)[Weights::kWords], Tokens& x) {
    uint2 b[kBlocks];
    x.template Read<kRun>(b);
    weights_.template Multiply<kRun>(words, b, half_1024_, acc_);
  }
  template <int kRun, class Tokens>
  __device__ __forceinline__ void MultiplyRunIfThere(int run,
                                                     const uint32_t (&words)[Weights::kWords],
                                                     Tokens& x, Scales& scales) {
    uint2 b[kBlocks];
    x.template Read<kRun>(b);
    if (run < begin_ || run >= end_) return;
    if (kRun != 0 && run == cell_end_) NextCell(run, scales);
    weights_.template Multiply<kRun>(words, b, half_1024_, acc_);
  }

  // This lane's tokens of a block: 2 t and the next.
  __device__ __forceinline__ int Token(int block, int i) const {
    return first_token_ + 8 * block + lane_ % 4 * 2 + i;
  }
  __device__ __forceinline__ int64_t TokenThatIs(int block, int i) const {
    const int token = Token(block, i);
    return token < launch_.m ? token : launch_.m - 1;
  }

  __device__ __forceinline__ void SetCell(int begin) {
    cell_begin_ = begin;
    cell_end_ = group_end_ < segment_end_ ? group_end_ : segment_end_;
    if (cell_end_ > end_) cell_end_ = end_;
  }

  __device__ __forceinline__ void NextCell(int run, Scales& scales) {
    CloseCell(run);
    if (run == segment_end_) {
      EndSegment();
      ++segment_;
      BeginSegment();
    }
    if (run == group_end_) {
      group_end_ += member_.group_runs;
      scales.Next(numbers_);
      weights_.SetZeros(numbers_);
    }
    SetCell(run);
  }

  __device__ __forceinline__ void CloseCell(int end) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        y_[block][i] = fmaf(acc_[block][i],
                            __fmul_rn(numbers_.scale[i / 2], x_scale_[block][i % 2]), y_[block][i]);
        acc_[block][i] = 0;
      }
    }
    if (member_.w.scale.has_min) AddMinima(end);
  }

  static constexpr int kRunsAtOnce = kBlocks < 4 ? 2 : 1;  // as registers allow

  __device__ __forceinline__ void AddMinima(int end) {
    const int64_t runs = launch_.padded_cols / 16;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      float sum[2] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* const of_token = launch_.run_sum + TokenThatIs(block, i) * runs;
#pragma unroll kRunsAtOnce
        for (int run = cell_begin_; run < end; ++run) sum[i] += of_token[run];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        y_[block][i] =
            fmaf(numbers_.min[i / 2], __fmul_rn(x_scale_[block][i % 2], sum[i % 2]), y_[block][i]);
      }
    }
  }

  __device__ __forceinline__ void BeginSegment() {
    if (launch_.segmented) {
      const int64_t end = (segment_ + int64_t{1}) * launch_.segment_cols;
      segment_end_ = static_cast<int>(((end < launch_.cols ? end : launch_.cols) + 15) / 16);
    } else if (kAllParts) {
      // Parts without tiles are passed over. The last one ends where nobody asks.
      const int first = FirstRunOfPart(launch_, segment_);
      while (segment_ + 1 < kParts && FirstRunOfPart(launch_, segment_ + 1) == first) ++segment_;
      segment_end_ = FirstRunOfPart(launch_, segment_ + 1);
    } else {
      segment_end_ = INT_MAX;
    }
    const float* const of_segment = launch_.scale + (launch_.segmented ? segment_ : 0);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        x_scale_[block][i] = of_segment[TokenThatIs(block, i) * launch_.segments];
    }
  }

  // Only this lane touches its slots until all warps are done.
  __device__ __forceinline__ void EndSegment() {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        long long& slot = slots_[4 * block + i][lane_];
        const float value = y_[block][i];
        y_[block][i] = 0;
        if (!launch_.segmented) {
          slot = __float_as_uint(__uint_as_float(static_cast<uint32_t>(slot)) + value);
        } else if (fabsf(value) < member_.limit) {
          slot += __float2ll_rn(value * 4294967296.0f);  // a power of two: exact
        } else {
          Poison(int64_t{row_tile_} * 16 + lane_ / 4 + i / 2 * 8, Token(block, i % 2));
        }
      }
    }
  }

  __device__ __forceinline__ void Poison(int64_t row, int token) {
    if (row < member_.w.rows && token < launch_.m)
      atomicAdd(reinterpret_cast<unsigned long long*>(member_.poison) + token, 1ull);
  }

  const LinearLaunch& launch_;
  const LinearMember& member_;
  const int row_tile_, first_token_, begin_, end_, lane_;
  const uint32_t half_1024_;
  const LaneSlots slots_;

  Weights weights_;
  PairNumbers numbers_ = {};
  float acc_[kBlocks][4] = {}, y_[kBlocks][4] = {};
  float x_scale_[kBlocks][2] = {};
  int segment_ = 0, cell_begin_ = 0, cell_end_ = 0, group_end_ = 0, segment_end_ = 0;
};

// Which matrix of the launch a unit of row tiles belongs to.
__device__ __forceinline__ int MemberOfUnit(const LinearLaunch& launch, int unit) {
  int member = 0;
  while (member + 1 < launch.count && unit >= launch.first_unit[member + 1]) ++member;
  return member;
}

// One output: what was found, and the bias.
__device__ __forceinline__ void StoreOutput(const LinearLaunch& launch, const LinearMember& member,
                                            int64_t row, int64_t token, long long found) {
  if (row >= member.w.rows || token >= launch.m) return;
  const int64_t at = token * member.stride + row;
  if (launch.segmented) {
    member.sums[at] = found;
    return;
  }
  float y = __uint_as_float(static_cast<uint32_t>(found));
  if (member.bias != nullptr) y += member.bias[row];
  member.y[at] = y;
}

}  // namespace bitshard::cuda
