// The A operand of linear_cells.cuh: one lane's words of 64 columns of a row tile, and their
// product with 8 kBlocks tokens. Weights go straight from global memory to registers.
#pragma once

#include <type_traits>

#include "kernels/cuda/dequant.cuh"
#include "kernels/cuda/dequant_scale.cuh"
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/mma.cuh"

namespace bitshard::cuda {

constexpr int kRunsOfTile = 4;

__device__ __forceinline__ void InUnits(float unit, PairNumbers& numbers) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    numbers.scale[i] = __fmul_rn(numbers.scale[i], unit);
    numbers.min[i] = __fmul_rn(numbers.min[i], unit);
  }
}

// Numbers of kRows row tiles, group after group. They come in units of Unit(), a power of two in
// which sums of products with activations over their scale, up to 2^15, stay in f32's range.
template <int kRows>
class AnyScaleRows {
 public:
  AnyScaleRows() = default;
  __device__ __forceinline__ AnyScaleRows(const ScaleView& view, const int (&row_tiles)[kRows],
                                          int lane, int group) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) rows_[row] = AnyScales(view, row_tiles[row], lane, group);
  }
  static constexpr float Unit() { return 0x1p-14f; }
  __device__ __forceinline__ void Next(PairNumbers (&out)[kRows]) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      rows_[row].Next(out[row]);
      InUnits(Unit(), out[row]);
    }
  }

 private:
  AnyScales rows_[kRows];
};

// kF16 and kBf16, a row each: both rows' numbers come in one load, a group ahead.
template <int kRows>
class HalfScaleRows {
 public:
  HalfScaleRows() = default;
  __device__ __forceinline__ HalfScaleRows(const ScaleView& view, const int (&row_tiles)[kRows],
                                           int lane, int group)
      : view_(&view),
        lane_(lane),
        left_(static_cast<int>(view.groups) - group),
        plain_(view.kind == ScaleKind::kF16 && !view.has_min && !view.has_zeros ? 1 : 0) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const uint8_t* const record =
          view.plane + row_tiles[row] * view.tile_bytes + group * view.record_bytes;
      stored_[row] = LoadHalves(view, record, lane);
      record_[row] = record + lane / 4 * 4;
    }
  }
  __device__ __forceinline__ float Unit() const {
    return view_->kind == ScaleKind::kF16 ? 1.0f : 0x1p-14f;
  }
  __device__ __forceinline__ void Next(PairNumbers (&out)[kRows]) {
    NextAsStored(out);
#pragma unroll
    for (int row = 0; row < kRows; ++row) InUnits(Unit(), out[row]);
  }
  // Not in units.
  __device__ __forceinline__ void NextAsStored(PairNumbers (&out)[kRows]) {
    --left_;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      ExpandHalves(*view_, stored_[row], out[row]);
      record_[row] += view_->record_bytes;
      if (left_ > 0) stored_[row] = LoadHalves(*view_, record_[row] - lane_ / 4 * 4, lane_);
    }
  }
  // f16 scales and nothing else: few instructions do.
  __device__ __forceinline__ bool IsPlain() const { return plain_ != 0; }
  __device__ __forceinline__ void NextPlain(PairNumbers (&out)[kRows]) {
    --left_;
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      out[row].scale[0] = LowHalf(stored_[row].scales);
      out[row].scale[1] = LowHalf(stored_[row].scales >> 16);
      record_[row] += 16 * sizeof(uint16_t);
      if (left_ > 0) stored_[row].scales = *reinterpret_cast<const uint32_t*>(record_[row]);
    }
  }

 private:
  const ScaleView* view_ = nullptr;
  const uint8_t* record_[kRows] = {};  // of the group in stored_, at the lane's scales
  int lane_ = 0;
  int left_ = 0;  // groups, with that one
  int plain_ = 0;
  StoredHalves stored_[kRows] = {};
};

// f16 and bf16 weights have no scales.
template <int kRows>
class NoScaleRows {
 public:
  NoScaleRows() = default;
  __device__ __forceinline__ NoScaleRows(const ScaleView&, const int (&)[kRows], int, int) {}
  static constexpr float Unit() { return 1.0f; }
  __device__ __forceinline__ void Next(PairNumbers (&out)[kRows]) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) out[row].scale[0] = out[row].scale[1] = 1.0f;
  }
};

// What a kind of weights has, here and in HalfWeights:
//   kWords, Lane, Load: a lane's words of a tile, where they lie, and the way from there
//   kUnrolled: where all cells are whole tiles these are unrolled (WarpCells::MultiplyTiles)
//   Scales: their numbers

// Exact integers in fp16 (dequant.cuh).
template <int kBits, bool kHalfScales>
class IntWeights {
 public:
  template <int kRows>
  using Scales = std::conditional_t<kHalfScales, HalfScaleRows<kRows>, AnyScaleRows<kRows>>;
  using Lane = LaneWords<kBits>;
  static constexpr int kWords = kBits;
  static constexpr bool kUnrolled = kHalfScales;

  static __device__ __forceinline__ void Load(const Lane& lane, int ahead, int /*runs*/,
                                              uint32_t (&words)[kWords]) {
    lane.Load(ahead, words);
  }
  __device__ __forceinline__ void SetZeros(const PairNumbers& numbers) {
    zeros_.Set(numbers.zero[0], numbers.zero[1]);
  }
  // acc += run kRun of the words * b.
  template <int kRun, int kBlocks>
  __device__ __forceinline__ void Multiply(const uint32_t (&words)[kWords],
                                           const uint2 (&b)[kBlocks], uint32_t half_1024,
                                           float (&acc)[kBlocks][4]) {
    uint32_t a[4];
    Fragment<kBits, kRun>(words, zeros_, half_1024, a);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const uint32_t pair[2] = {b[block].x, b[block].y};
      MmaF16(acc[block], a, pair);
    }
  }

 private:
  ZeroTerms<kBits> zeros_ = {};
};

// Where a lane finds its 8 halves of each run of a row tile.
class LaneHalves {
 public:
  static constexpr int kTileBytes = 512 * kRunsOfTile;

  LaneHalves() = default;
  __device__ __forceinline__ LaneHalves(const uint8_t* tile, int lane) : at_(tile + 16 * lane) {}

  // Of the tile that lies `ahead` tiles on.
  __device__ __forceinline__ uint4 Load(int ahead, int run) const {
    return LoadStreaming(reinterpret_cast<const uint4*>(at_ + ahead * kTileBytes + 512 * run));
  }
  __device__ __forceinline__ void Advance(int tiles) { at_ += tiles * kTileBytes; }

 private:
  const uint8_t* at_ = nullptr;
};

template <bool kBf16>
class HalfWeights {
 public:
  template <int kRows>
  using Scales = NoScaleRows<kRows>;
  using Lane = LaneHalves;
  static constexpr int kWords = 4 * kRunsOfTile;
  static constexpr bool kUnrolled = false;

  // The last tile may have fewer than four runs.
  static __device__ __forceinline__ void Load(const Lane& lane, int ahead, int runs,
                                              uint32_t (&words)[kWords]) {
#pragma unroll
    for (int i = 0; i < kRunsOfTile; ++i) {
      if (i < runs) {
        const uint4 v = lane.Load(ahead, i);
        words[4 * i] = v.x, words[4 * i + 1] = v.y;
        words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
      }
    }
  }
  __device__ __forceinline__ void SetZeros(const PairNumbers&) {}
  template <int kRun, int kBlocks>
  __device__ __forceinline__ void Multiply(const uint32_t (&words)[kWords],
                                           const uint2 (&b)[kBlocks], uint32_t /*half_1024*/,
                                           float (&acc)[kBlocks][4]) {
    const uint32_t a[4] = {words[4 * kRun], words[4 * kRun + 1], words[4 * kRun + 2],
                           words[4 * kRun + 3]};
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if constexpr (kBf16) {
        uint32_t high[2], low[2];
        Split(b[block].x, high[0], low[0]);
        Split(b[block].y, high[1], low[1]);
        MmaBf16(acc[block], a, high);
        MmaBf16(acc[block], a, low);
      } else {
        const uint32_t pair[2] = {b[block].x, b[block].y};
        MmaF16(acc[block], a, pair);
      }
    }
  }

 private:
  // Two halves as high + low in bf16, exactly: high has the first 8 of their 11 digits.
  static __device__ __forceinline__ void Split(uint32_t pair, uint32_t& high, uint32_t& low) {
    const uint32_t first = __float_as_uint(HalfToFloat(static_cast<uint16_t>(pair)));
    const uint32_t second = __float_as_uint(HalfToFloat(static_cast<uint16_t>(pair >> 16)));
    high = __byte_perm(first, second, 0x7632);
    const float rest = __uint_as_float(first) - __uint_as_float(first & 0xffff0000u);
    const float rest2 = __uint_as_float(second) - __uint_as_float(second & 0xffff0000u);
    low = __byte_perm(__float_as_uint(rest), __float_as_uint(rest2), 0x7632);
  }
};

// A lane's words of the tiles of kRows row tiles, loaded kStages tiles ahead of their use. Tile i
// of a round of kStages tiles lies in stage i.
template <class Weights, int kRows, int kStages>
class WeightTiles {
 public:
  using Lane = typename Weights::Lane;
  using Words = uint32_t[kRows][Weights::kWords];

  // The tiles with runs [4 first, end) of each row tile; `codes` of row tile i of them at row[i].
  __device__ __forceinline__ WeightTiles(const uint8_t* const (&codes)[kRows], int first, int end,
                                         int lane)
      : runs_left_(end - first * kRunsOfTile) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      lanes_[row] = Lane(codes[row] + int64_t{first} * Lane::kTileBytes, lane);
    }
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      const int runs = runs_left_ - stage * kRunsOfTile;
      if (runs > 0) Load(stage, stage, runs);
    }
  }
  __device__ __forceinline__ const Words& Stage(int stage) const { return words_[stage]; }

  // Whole tiles, a round after the other. After the use of a stage: the next round's tile comes in
  // its place; `more`: there is one.
  __device__ __forceinline__ void Refill(int stage, bool more) {
    if (more) Load(stage, kStages + stage, kRunsOfTile);
  }
  __device__ __forceinline__ void NextRound() { Advance(kStages); }

  // One tile after the other, each in stage 0. After its use.
  __device__ __forceinline__ void Shift() {
#pragma unroll
    for (int stage = 0; stage + 1 < kStages; ++stage) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int word = 0; word < Weights::kWords; ++word)
          words_[stage][row][word] = words_[stage + 1][row][word];
      }
    }
    const int runs = runs_left_ - kStages * kRunsOfTile;
    if (runs > 0) Load(kStages - 1, kStages, runs);
    runs_left_ -= kRunsOfTile;
    Advance(1);
  }

 private:
  __device__ __forceinline__ void Load(int stage, int ahead, int runs) {
#pragma unroll
    for (int row = 0; row < kRows; ++row)
      Weights::Load(lanes_[row], ahead, runs, words_[stage][row]);
  }
  __device__ __forceinline__ void Advance(int tiles) {
#pragma unroll
    for (int row = 0; row < kRows; ++row) lanes_[row].Advance(tiles);
  }

  Words words_[kStages] = {};
  Lane lanes_[kRows];
  int runs_left_;
};

// Stages of `words` words with which `registers` words are on their way while a stage is in use.
constexpr int StagesFor(int words, int registers, int most) {
  const int stages = 1 + (registers + words - 1) / words;
  return stages < most ? stages : most;
}

}  // namespace bitshard::cuda
