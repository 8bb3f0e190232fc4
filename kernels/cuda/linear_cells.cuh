// One warp's sums of kRows row tiles (16 rows each) x 8 kBlocks tokens of y = W x, and with it the
// order of summation of the kernels of linear_tiles.cuh and linear_large.cuh: for any number of
// tokens and row tiles, any of those kernels, the same bits.
//
// A run is 16 columns, one mma; accumulators are f32.
//  - A cell is what a weight group, a segment and a part have in common. In it acc = 0, then the
//    mma of each run in ascending k (bf16 weights: two, of the activation's two bf16 terms, which
//    are exact); then y = fma(acc, s_w, y), and with minima y = fma(min, X, y), X the run sums
//    added in ascending order. Cells of a part or segment ascending; at its end y * s_x.
//  - Whole K: 8 parts, part p has tiles [T p / 8, T (p + 1) / 8) of the T tiles of 64 columns.
//    Those that are not empty are added in ascending order, then the bias.
//  - Segments: each alone from y = 0, then to int64.
// s_x is a power of two: within f32's normal range the bits are those of y = fma(acc, s_w * s_x,
// y). So that y stays in it, scales that are not f16 come times 2^-14, and s_x then times 2^14. An
// output depends on its row, its token and the cuts along K, on nothing else.
#pragma once

#include <climits>

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_grid.cuh"
#include "kernels/cuda/linear_out.cuh"
#include "kernels/cuda/linear_weights.cuh"

namespace bitshard::cuda {

constexpr int kLinearWarps = 8;
constexpr int kParts = 8;
constexpr int kTileColumns = 16 * kRunsOfTile;

// First run of a part of a whole K; of part 8 the end.
__device__ __forceinline__ int FirstRunOfPart(const LinearLaunch& launch, int part) {
  return static_cast<int>(launch.padded_cols / kTileColumns * part / kParts) * kRunsOfTile;
}

// The same for all lanes. The compiler knows that what comes out of a shuffle from one lane is the
// same for all: it need not see to lanes that part ways where a branch depends on it.
__device__ __forceinline__ int WarpOfBlock() {
  return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
}
// A launch parameter that is an operand beside a constant: instructions take only one of the two
// from elsewhere than a register.
__device__ __forceinline__ uint32_t InRegister(uint32_t parameter) {
  return __shfl_sync(0xffffffffu, parameter, 0);
}

// What a warp goes through.
enum class CellRange {
  kAny,       // segments, or one part of a whole K
  kAllParts,  // segments, or parts
  kTiles,     // one part, whose cells are whole tiles and have no minima
};

// What a warp has found: int64 sums of segments, or the bits of f32. Of each value the lane's own;
// in shared memory, which saves registers.
using LaneSlots = long long (*)[32];
// -0: adding to it changes nothing.
__device__ __forceinline__ long long EmptySlot(const LinearLaunch& launch) {
  return launch.segmented ? 0 : 0x80000000ll;
}

// Value i of block b and row tile r is of row 16 r + g + i / 2 * 8 and token 8 b + 2 t + i % 2 (g =
// lane / 4, t = lane % 4), in slot 4 (kBlocks r + b) + i. Where there is no such row tile or token
// the last one is computed again, for nobody.
template <class Weights, int kRows, int kBlocks, CellRange kRange>
class WarpCells {
 public:
  using Words = uint32_t[kRows][Weights::kWords];
  using Scales = typename Weights::template Scales<kRows>;
  static constexpr bool kSegments = kRange != CellRange::kTiles;

  // Runs [begin, end) of row tiles row_tile...
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
        half_1024_(InRegister(launch.half_1024)),
        slots_(slots) {}

  // That of the words [row] of Multiply.
  __device__ __forceinline__ int RowTile(int row) const {
    const int last = static_cast<int>((member_.w.rows + 15) / 16) - 1;
    return row_tile_ + row < last ? row_tile_ + row : last;
  }
  // Reads weights only.
  __device__ __forceinline__ void OpenGroup() {
    int group = 0;
    group_end_ = INT_MAX;
    if (member_.group_runs > 0) {
      group = (begin_ + member_.first_group_runs) / member_.group_runs;
      group_end_ = (group + 1) * member_.group_runs - member_.first_group_runs;
    }
    int row_tiles[kRows];
#pragma unroll
    for (int row = 0; row < kRows; ++row) row_tiles[row] = RowTile(row);
    scales_ = Scales(member_.w.scale, row_tiles, lane_, group);
    scales_.Next(numbers_);
    SetZeros();
  }
  // After OpenGroup; reads activations. The first run is in `segment`, or in part `segment`.
  __device__ __forceinline__ void OpenSegment(int segment) {
    segment_ = segment;
    cell_begin_ = begin_;
    BeginSegment();
    SetCellEnd();
  }
  // After the last tile.
  __device__ __forceinline__ void Close() {
    CloseCell();
    if (kSegments && member_.w.scale.has_min) AddMinima(end_);
    EndSegment();
  }

  // One tile, of which the runs from begin to end count. Tokens: x.Read<kRun>(b) gives the B
  // operands of a run, x.Refill<kRun>() comes after their use; both for all runs, in order.
  template <class Tokens>
  __device__ __forceinline__ void Multiply(int tile, const Words& words, Tokens& x) {
    const int run = tile * kRunsOfTile;
    if (run == cell_end_) NextCell();
    if (run >= begin_ && run + kRunsOfTile <= cell_end_) {
      MultiplyTile(words, x);
    } else {
      MultiplyRunIfThere<0>(run, words, x);
      MultiplyRunIfThere<1>(run + 1, words, x);
      MultiplyRunIfThere<2>(run + 2, words, x);
      MultiplyRunIfThere<3>(run + 3, words, x);
    }
  }

  // All tiles. Cells end between them, which is known without a look at the runs; the tiles of a
  // round are unrolled, so that stages are registers and addresses constants. REQUIRES:
  // CellRange::kTiles.
  template <int kStages, class Tokens>
  __device__ __forceinline__ void MultiplyTiles(WeightTiles<Weights, kRows, kStages>& weights,
                                                Tokens& x) {
    // Tiles of the range and of the cell that are left, both counted from the round's first.
    int left = (end_ - begin_) / kRunsOfTile, cell = (cell_end_ - begin_) / kRunsOfTile;
    const int group = member_.group_runs / kRunsOfTile;
    while (true) {
#pragma unroll
      for (int stage = 0; stage < kStages; ++stage) {
        x.SetTile(stage, left > stage + 1);
        MultiplyTile(weights.Stage(stage), x);
        weights.Refill(stage, left > kStages + stage);
        if (cell == stage + 1) {
          if (left == stage + 1) return;
          CloseCell();
          if (scales_.IsPlain()) {
            scales_.NextPlain(numbers_);
          } else {
            NextGroup();
          }
          cell = cell + group < left ? cell + group : left;
        }
      }
      left -= kStages;
      cell -= kStages;
      weights.NextRound();
      x.Advance(kStages);
    }
  }

 private:
  template <int kRun, class Tokens>
  __device__ __forceinline__ void MultiplyRun(const Words& words, Tokens& x) {
    uint2 b[kBlocks];
    x.template Read<kRun>(b);
#pragma unroll
    for (int row = 0; row < kRows; ++row)
      weights_[row].template Multiply<kRun>(words[row], b, half_1024_, acc_[row]);
    x.template Refill<kRun>();
  }
  template <class Tokens>
  __device__ __forceinline__ void MultiplyTile(const Words& words, Tokens& x) {
    MultiplyRun<0>(words, x);
    MultiplyRun<1>(words, x);
    MultiplyRun<2>(words, x);
    MultiplyRun<3>(words, x);
  }
  template <int kRun, class Tokens>
  __device__ __forceinline__ void MultiplyRunIfThere(int run, const Words& words, Tokens& x) {
    if (run < begin_ || run >= end_) {
      x.template Refill<kRun>();
      return;
    }
    if (kRun != 0 && run == cell_end_) NextCell();
    MultiplyRun<kRun>(words, x);
  }

  // This lane's tokens of a block: 2 t and the next.
  __device__ __forceinline__ int Token(int block, int i) const {
    return first_token_ + 8 * block + lane_ % 4 * 2 + i;
  }
  __device__ __forceinline__ int64_t TokenThatIs(int block, int i) const {
    const int token = Token(block, i);
    return token < launch_.m ? token : launch_.m - 1;
  }

  __device__ __forceinline__ void SetCellEnd() {
    cell_end_ = group_end_ < segment_end_ ? group_end_ : segment_end_;
    if (cell_end_ > end_) cell_end_ = end_;
  }

  __device__ __forceinline__ void NextCell() {
    const int run = cell_end_;
    CloseCell();
    if (member_.w.scale.has_min) AddMinima(run);
    if (run == segment_end_) {
      EndSegment();
      ++segment_;
      BeginSegment();
    }
    if (run == group_end_) {
      group_end_ += member_.group_runs;
      NextGroup();
    }
    SetCellEnd();
  }

  __device__ __forceinline__ void SetZeros() {
#pragma unroll
    for (int row = 0; row < kRows; ++row) weights_[row].SetZeros(numbers_[row]);
  }

  __device__ __forceinline__ void NextGroup() {
    scales_.Next(numbers_);
    if (member_.w.scale.has_zeros) SetZeros();
  }

  __device__ __forceinline__ void CloseCell() {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          y_[row][block][i] =
              fmaf(acc_[row][block][i], numbers_[row].scale[i / 2], y_[row][block][i]);
          acc_[row][block][i] = 0;
        }
      }
    }
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
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          y_[row][block][i] = fmaf(numbers_[row].min[i / 2], sum[i % 2], y_[row][block][i]);
        }
      }
    }
    cell_begin_ = end;
  }

  __device__ __forceinline__ void BeginSegment() {
    if (kSegments && launch_.segmented) {
      const int end = (segment_ + 1) * static_cast<int>(launch_.segment_cols / 16);
      const int runs = static_cast<int>((launch_.cols + 15) / 16);
      segment_end_ = end < runs ? end : runs;
    } else if (kRange == CellRange::kAllParts) {
      // Parts without tiles are passed over. The last one ends where nobody asks.
      const int first = FirstRunOfPart(launch_, segment_);
      while (segment_ + 1 < kParts && FirstRunOfPart(launch_, segment_ + 1) == first) ++segment_;
      segment_end_ = FirstRunOfPart(launch_, segment_ + 1);
    } else {
      segment_end_ = INT_MAX;
    }
    if (kSegments) LoadScales();
  }

  // At the begin of a segment or part; at the end of the only one, which saves registers.
  __device__ __forceinline__ void LoadScales() {
    const float up = scales_.Unit() == 1.0f ? 1.0f : 0x1p14f;
    const float* const of_segment = launch_.scale + (kSegments && launch_.segmented ? segment_ : 0);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        x_scale_[block][i] = __fmul_rn(of_segment[TokenThatIs(block, i) * launch_.segments], up);
    }
  }

  // Only this lane touches its slots until all warps are done.
  __device__ __forceinline__ void EndSegment() {
    if (!kSegments) LoadScales();
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          long long& slot = slots_[4 * (kBlocks * row + block) + i][lane_];
          const float value = __fmul_rn(y_[row][block][i], x_scale_[block][i % 2]);
          y_[row][block][i] = 0;
          if (!kSegments || !launch_.segmented) {
            slot = __float_as_uint(__uint_as_float(static_cast<uint32_t>(slot)) + value);
          } else {
            AddFixed(launch_, member_, int64_t{row_tile_ + row} * 16 + lane_ / 4 + i / 2 * 8,
                     Token(block, i % 2), value, slot);
          }
        }
      }
    }
  }

  const LinearLaunch& launch_;
  const LinearMember& member_;
  const int row_tile_, first_token_, begin_, end_, lane_;
  const uint32_t half_1024_;
  const LaneSlots slots_;

  Weights weights_[kRows];
  Scales scales_;
  PairNumbers numbers_[kRows] = {};
  float acc_[kRows][kBlocks][4] = {}, y_[kRows][kBlocks][4] = {};
  float x_scale_[kBlocks][2] = {};
  int segment_ = 0, cell_begin_ = 0, cell_end_ = 0, group_end_ = 0, segment_end_ = 0;
};

// One output, of what lies in its slots.
__device__ __forceinline__ void StoreSlot(const LinearLaunch& launch, const LinearMember& member,
                                          int64_t row, int64_t token, long long found) {
  StoreOutput(launch, member, row, token, __uint_as_float(static_cast<uint32_t>(found)), found);
}

}  // namespace bitshard::cuda
