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

// Exact integers in fp16 (dequant.cuh).
template <int kBits, bool kHalfScales>
class IntWeights {
 public:
  static constexpr int kWords = kBits;
  using Scales = std::conditional_t<kHalfScales, HalfScales, AnyScales>;

  static constexpr int kTileBytes = 128 * kBits;

  static __device__ __forceinline__ void Load(const uint8_t* tile, int /*runs*/, int lane,
                                              uint32_t (&words)[kWords]) {
    LoadTile<kBits>(tile, lane, words);
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

// f16 and bf16 weights have no scales.
class NoScales {
 public:
  __device__ __forceinline__ NoScales(const ScaleView&, int64_t, int, int) {}
  __device__ __forceinline__ void Next(PairNumbers& out) { out.scale[0] = out.scale[1] = 1.0f; }
};

template <bool kBf16>
class HalfWeights {
 public:
  static constexpr int kWords = 4 * kRunsOfTile;
  using Scales = NoScales;

  static constexpr int kTileBytes = 512 * kRunsOfTile;

  // The last tile may have fewer than four runs.
  static __device__ __forceinline__ void Load(const uint8_t* tile, int runs, int lane,
                                              uint32_t (&words)[kWords]) {
#pragma unroll
    for (int i = 0; i < kRunsOfTile; ++i) {
      if (i < runs) {
        const uint4 v = LoadStreaming(reinterpret_cast<const uint4*>(tile) + i * 32 + lane);
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

// Tiles of words in flight while one is computed: what the registers hold.
template <int kWords, int kBlocks>
class TilesAhead {
  static constexpr int kRegisters = kBlocks == 4 ? 8 : 24;
  static constexpr int kTiles = kRegisters / kWords - 1;
  static constexpr int kLeast = kBlocks == 4 ? 0 : 1;

 public:
  static constexpr int kCount = kTiles < kLeast ? kLeast : kTiles > 3 ? 3 : kTiles;
};

// A lane's tiles, loaded some ahead of their use.
template <class Weights, int kBlocks>
class WeightTiles {
 public:
  static constexpr int kAhead = TilesAhead<Weights::kWords, kBlocks>::kCount;

  // The tiles with runs [4 first, end) of the row tile at `codes`.
  __device__ __forceinline__ WeightTiles(const uint8_t* codes, int first, int end, int lane)
      : next_(codes + int64_t{first} * Weights::kTileBytes),
        runs_left_(end - first * kRunsOfTile),
        lane_(lane) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) LoadNext(words_[i]);
  }
  __device__ __forceinline__ const uint32_t (&Current() const)[Weights::kWords] {
    return words_[0];
  }
  // Before the use of a tile, and after it.
  __device__ __forceinline__ void LoadAhead() { LoadNext(words_[kAhead]); }
  __device__ __forceinline__ void Shift() {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int word = 0; word < Weights::kWords; ++word) words_[i][word] = words_[i + 1][word];
    }
  }

 private:
  __device__ __forceinline__ void LoadNext(uint32_t (&words)[Weights::kWords]) {
    if (runs_left_ > 0) Weights::Load(next_, runs_left_, lane_, words);
    next_ += Weights::kTileBytes;
    runs_left_ -= kRunsOfTile;
  }

  uint32_t words_[kAhead + 1][Weights::kWords] = {};
  const uint8_t* next_;
  int runs_left_;
  const int lane_;
};

}  // namespace bitshard::cuda
