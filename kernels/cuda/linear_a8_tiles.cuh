// What the kernels of W x in integers have in common: operands of mma.m16n8k32 out of the packed
// words, one cell's exact sum and its term, the walk through a row tile.
//
// A cell's sum is I = sum (code - zero) q = sum code q - zero sum q: the last enters by the mma's
// accumulator, which starts at 1.5 * 2^23 in bits, so that the integer that comes out is the bits
// of the float 1.5 * 2^23 + I: |I| <= 32 * 255 * 127 < 2^22. No integer is ever converted.
#pragma once

#include <climits>

#include "kernels/cuda/dequant.cuh"
#include "kernels/cuda/dequant_scale.cuh"
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear_a8.h"
#include "kernels/cuda/linear_grid.cuh"
#include "kernels/cuda/linear_out.cuh"
#include "kernels/cuda/ptx/mma.cuh"

namespace bitshard::cuda {

constexpr int kA8Warps = 8;
constexpr int kA8TileRuns = 4;
constexpr int kA8TileCols = 16 * kA8TileRuns;

constexpr int32_t kA8Start = 0x4b400000;
__device__ __forceinline__ float A8SumOf(int32_t accumulator) {
  return __int_as_float(accumulator) - 12582912.0f;
}

// Codes of rows g or g + 8 and run kRun, a byte each.
template <int kBits, int kHalf, int kRun>
__device__ __forceinline__ uint32_t CodeBytes(const uint32_t (&words)[kBits]) {
  const uint32_t word = CodeWord<kBits, kHalf, kRun>(words);
  if constexpr (kBits == 8) {
    return word;
  } else {
    constexpr uint32_t kMask = ((1u << kBits) - 1) * 0x01010101u;
    return word >> kCodeShift<kBits, kHalf, kRun> & kMask;
  }
}

// Of run kRun, and where a cell is a pair of runs of the next one too.
template <int kBits, int kRun, bool kPair>
__device__ __forceinline__ void CodeOperand(const uint32_t (&words)[kBits], uint32_t (&a)[4]) {
  a[0] = CodeBytes<kBits, 0, kRun>(words);
  a[1] = CodeBytes<kBits, 1, kRun>(words);
  a[2] = a[3] = 0;
  if constexpr (kPair) {
    a[2] = CodeBytes<kBits, 0, kRun + 1>(words);
    a[3] = CodeBytes<kBits, 1, kRun + 1>(words);
  }
}

// Of a tile of 64 columns, a lane's part of the activations of one block of 8 tokens: q of token g
// by run; scales and sums of tokens 2 t and 2 t + 1.
struct A8Tokens {
  uint4 q;
  // Scales of runs 0 and 2, sums of runs 0 and 1, of 2 and 3.
  uint4 pairs[2];
  // Scales of runs 1 and 3, sums of the four runs; where cells are no pairs.
  uint4 runs[2];
};

struct A8Cell {
  float scale[2];
  int32_t sum[2];
};

// s_x * X, which minima multiply.
__device__ __forceinline__ float A8XSum(float x_scale, int32_t x_sum) {
  return __fmul_rn(x_scale, A8SumOf(kA8Start + x_sum));
}

__device__ __forceinline__ uint32_t A8Run(const uint4& q, int run) {
  return run == 0 ? q.x : run == 1 ? q.y : run == 2 ? q.z : q.w;
}

// Of tokens 2 t and 2 t + 1, for runs kRun and kRun + 1, or for run kRun.
template <int kRun, bool kPair>
__device__ __forceinline__ A8Cell CellOf(const A8Tokens& tokens) {
  A8Cell cell;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4& of = kRun % 2 == 0 ? tokens.pairs[i] : tokens.runs[i];
    cell.scale[i] = __uint_as_float(kRun / 2 == 0 ? of.x : of.y);
    if constexpr (kPair) {
      cell.sum[i] = static_cast<int32_t>(kRun / 2 == 0 ? of.z : of.w);
    } else {
      const uint32_t sums = kRun / 2 == 0 ? tokens.runs[i].z : tokens.runs[i].w;
      cell.sum[i] = static_cast<int16_t>(kRun % 2 == 0 ? sums & 0xffffu : sums >> 16);
    }
  }
  return cell;
}

// accumulator += codes * q, and the zero points' part. Value i is of row g + i / 2 * 8 and token 2
// t
// + i % 2, as everywhere.
template <int kRun, bool kPair>
__device__ __forceinline__ void AddCell(const uint32_t (&a)[4], const uint32_t (&zero)[2],
                                        const A8Cell& cell, const uint4& q,
                                        int32_t (&accumulator)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) accumulator[i] -= static_cast<int32_t>(zero[i / 2]) * cell.sum[i % 2];
  const uint32_t b[2] = {A8Run(q, kRun), kPair ? A8Run(q, kRun + 1) : 0};
  MmaU8S8(accumulator, a, b);
}

// What a warp has of its block's share: kWarpsOfTile warps share a row tile.
struct A8Warp {
  const LinearMember& member;
  const int first_token;
  const int warp, lane;
  const int row_tile;
  const bool has_rows;    // else it is there for the others
  const int runs, tiles;  // of all columns
};
template <int kTokens, int kWarpsOfTile = 1>
__device__ __forceinline__ A8Warp WarpOfA8Block(const LinearA8Launch& launch) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const BlockShare share = ShareOfBlock(launch, kTokens);
  const int row_tile = share.unit * (kA8Warps / kWarpsOfTile) + warp / kWarpsOfTile;
  const int runs = static_cast<int>((launch.cols + 15) / 16);
  return {share.member, share.first_token,
          warp,         lane,
          row_tile,     int64_t{row_tile} * 16 < share.member.w.rows,
          runs,         (runs + kA8TileRuns - 1) / kA8TileRuns};
}

// Which weight group a run is in. At most 65535 runs (kMaxA8Cols), so that the quotient is exact.
class A8Groups {
 public:
  __device__ __forceinline__ explicit A8Groups(const LinearMember& member)
      : runs_(static_cast<uint32_t>(member.group_runs)),
        first_(static_cast<uint32_t>(member.first_group_runs)),
        inverse_(runs_ > 1 ? 0xffffffffu / runs_ + 1 : 0) {}
  __device__ __forceinline__ int Of(int run) const {
    const uint32_t at = static_cast<uint32_t>(run) + first_;
    if (runs_ <= 1) return runs_ == 0 ? 0 : static_cast<int>(at);
    return static_cast<int>(__umulhi(at, inverse_));
  }

 private:
  const uint32_t runs_, first_, inverse_;
};

// Cells of a tile that have columns; not above 0: the tile is beyond the end.
template <int kCells>
__device__ __forceinline__ int CellsOfTile(int runs, int tile) {
  const int left = runs - tile * kA8TileRuns;
  const int cells = kCells == kA8TileRuns ? left : (left + 1) / 2;
  return cells < kCells ? cells : kCells;
}

// One row's numbers of one group, as a lane keeps them until they are used: halves as stored, of
// other kinds the f32. A format has minima or zero points, not both.
struct A8Numbers {
  uint32_t scale, beside;
};

// Scales, minima and zero points of the cells of a tile. A lane reads those of one row and cell
// (row lane % 16, cell lane / 16, and with four cells that and the next but one), and gets those of
// its rows g and g + 8 from others: so it is done once in a warp, and in one piece of code for all
// kinds.
class A8Scales {
 public:
  __device__ __forceinline__ A8Scales(const ScaleView& view, int row_tile, int lane)
      : view_(view),
        halves_(!view.shared_rows &&
                (view.kind == ScaleKind::kF16 || view.kind == ScaleKind::kBf16)),
        row_(row_tile * 16 + lane % 16),
        records_(view.plane + row_tile * view.tile_bytes) {}

  __device__ __forceinline__ A8Numbers Load(int group) const {
    if (!halves_) {
      const GroupNumbers numbers = NumbersOf(view_, row_, group);
      return {__float_as_uint(numbers.scale),
              view_.has_min ? __float_as_uint(numbers.min) : numbers.zero};
    }
    const uint8_t* const record = records_ + group * view_.record_bytes;
    const int slot = DeviceScaleSlot(row_ % 16);
    A8Numbers own = {reinterpret_cast<const uint16_t*>(record)[slot], 0};
    if (view_.has_min) own.beside = reinterpret_cast<const uint16_t*>(record + 32)[slot];
    if (view_.has_zeros) {
      own.beside = view_.bits == 2
                       ? *reinterpret_cast<const uint32_t*>(record + 32) >> (2 * slot) & 3u
                       : uint32_t{record[32 + slot]};
    }
    return own;
  }

  // Of a cell, by all lanes. `own`: what they have loaded for it and the one beside it.
  __device__ __forceinline__ void Share(const A8Numbers& own, int cell, int lane,
                                        PairNumbers& out) const {
    uint32_t scale = own.scale, beside = own.beside;
    if (halves_) {
      const bool bf16 = view_.kind == ScaleKind::kBf16;
      const float half = HalfToFloat(static_cast<uint16_t>(scale));
      scale = bf16 ? scale << 16 : __float_as_uint(half);
      if (view_.has_min) beside = __float_as_uint(HalfToFloat(static_cast<uint16_t>(beside)));
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = cell % 2 * 16 + half * 8 + lane / 4;
      out.scale[half] = __uint_as_float(__shfl_sync(0xffffffffu, scale, from));
      out.min[half] = 0;
      out.zero[half] = static_cast<uint32_t>(view_.zero_point);
      if (!view_.has_min && !view_.has_zeros) continue;
      const uint32_t shared = __shfl_sync(0xffffffffu, beside, from);
      if (view_.has_min) {
        out.min[half] = __uint_as_float(shared);
      } else {
        out.zero[half] = shared;
      }
    }
  }

 private:
  const ScaleView& view_;
  const bool halves_;
  const int row_;
  const uint8_t* const records_;
};

// The tiles first, first + step, ... of a row tile and their scales, loaded kAhead of them ahead of
// their use.
template <int kBits, bool kPairs, int kAhead>
class A8Weights {
 public:
  static constexpr int kCells = kPairs ? kA8TileRuns / 2 : kA8TileRuns;

  // Of `runs` runs of 16 columns.
  __device__ __forceinline__ A8Weights(const LinearMember& member, int row_tile, int first,
                                       int step, int runs, int lane)
      : scales_(member.w.scale, row_tile, lane),
        groups_(member),
        codes_(member.w.codes + row_tile * member.w.tile_bytes),
        step_(step),
        runs_(runs),
        lane_(lane),
        tile_(first),
        next_(first) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) LoadNext(loaded_[i]);
  }

  // Before the use of a tile, and after it.
  __device__ __forceinline__ void LoadAhead() { LoadNext(loaded_[kAhead]); }
  __device__ __forceinline__ void Shift() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) loaded_[i] = loaded_[i + 1];
    tile_ += step_;
  }

  // Cells of the tile that have columns.
  __device__ __forceinline__ int Cells() const { return CellsOfTile<kCells>(runs_, tile_); }
  template <int kCell>
  __device__ __forceinline__ void Operand(uint32_t (&a)[4]) const {
    CodeOperand<kBits, kCell * kCellRuns, kPairs>(loaded_[0].words, a);
  }
  // By all lanes.
  template <int kCell>
  __device__ __forceinline__ void Numbers(PairNumbers& out) const {
    scales_.Share(loaded_[0].own[kCell / 2], kCell, lane_, out);
  }

 private:
  static constexpr int kCellRuns = kA8TileRuns / kCells;
  struct Loaded {
    uint32_t words[kBits];
    A8Numbers own[kCells / 2];
  };

  __device__ __forceinline__ void LoadNext(Loaded& to) {
    const int cells = CellsOfTile<kCells>(runs_, next_);
    if (cells > 0) LoadTile<kBits>(codes_ + int64_t{next_} * (128 * kBits), lane_, to.words);
#pragma unroll
    for (int i = 0; i < kCells / 2; ++i) {
      const int cell = 2 * i + lane_ / 16;
      if (cell < cells)
        to.own[i] = scales_.Load(groups_.Of(next_ * kA8TileRuns + cell * kCellRuns));
    }
    next_ += step_;
  }

  const A8Scales scales_;
  const A8Groups groups_;
  const uint8_t* const codes_;
  const int step_, runs_, lane_;
  int tile_, next_;
  Loaded loaded_[kAhead + 1] = {};
};

// The run after the last of a segment; INT_MAX where the whole K is one.
__device__ __forceinline__ int A8SegmentEnd(const LinearA8Launch& launch, int segment) {
  if (!launch.segmented) return INT_MAX;
  const int64_t end = (segment + int64_t{1}) * launch.segment_cols;
  return static_cast<int>(((end < launch.cols ? end : launch.cols) + 15) / 16);
}

}  // namespace bitshard::cuda
