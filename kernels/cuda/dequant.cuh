// Codes of P16x64-S tiles (kernels/tensor/p16x64.h, device_matrix.h) as A operands of mma.m16n8k16:
// exact integers code - zero in fp16.
//
// Bytes 0 and 2 of a lane's word are columns 2t, 2t+1 of a run of 16, bytes 1 and 3 are 2t+8, 2t+9.
// A code at bits s.. of a byte, put into the mantissa of 1024.0, is 1024 + 2^s code; one
// subtraction, or one fma with 2^-s, makes code - zero of it, exactly.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/load.cuh"

namespace bitshard::cuda {

// Where a lane finds its words of a row tile: in chunks of 4, 2 and 1 words a tile.
template <int kBits>
class LaneWords {
 public:
  static constexpr int kTileBytes = 128 * kBits;

  LaneWords() = default;
  __device__ __forceinline__ LaneWords(const uint8_t* tile, int lane)
      : fours_(tile + 16 * lane),
        two_(tile + 128 * kFours + 8 * lane),
        one_(tile + 128 * (kBits - 1) + 4 * lane) {}

  // Of the tile that lies `ahead` tiles on.
  __device__ __forceinline__ void Load(int ahead, uint32_t (&words)[kBits]) const {
    const int at = ahead * kTileBytes;
#pragma unroll
    for (int i = 0; i < kFours; i += 4) {
      const uint4 v = LoadStreaming(reinterpret_cast<const uint4*>(fours_ + at + 128 * i));
      words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
    }
    if constexpr (kBits % 4 >= 2) {
      const uint2 v = LoadStreaming(reinterpret_cast<const uint2*>(two_ + at));
      words[kFours] = v.x, words[kFours + 1] = v.y;
    }
    if constexpr (kBits % 2 == 1)
      words[kBits - 1] = LoadStreaming(reinterpret_cast<const uint32_t*>(one_ + at));
  }
  __device__ __forceinline__ void Advance(int tiles) {
    fours_ += tiles * kTileBytes;
    two_ += tiles * kTileBytes;
    one_ += tiles * kTileBytes;
  }

 private:
  static constexpr int kFours = kBits / 4 * 4;

  const uint8_t *fours_ = nullptr, *two_ = nullptr, *one_ = nullptr;
};

// A lane's words of one tile.
template <int kBits>
__device__ __forceinline__ void LoadTile(const uint8_t* tile, int lane, uint32_t (&words)[kBits]) {
  LaneWords<kBits>(tile, lane).Load(0, words);
}

// Virtual word kVirtual >= kBits, put together from the spare high bits of the stored words.
template <int kBits, int kVirtual>
__device__ __forceinline__ uint32_t SpareWord(const uint32_t (&words)[kBits]) {
  constexpr int kSpare = 8 - kBits;
  uint32_t out = 0;
#pragma unroll
  for (int bit = 0; bit < kBits; ++bit) {
    const int pos = (kVirtual - kBits) * kBits + bit;
    if (bit != 0 && pos % kSpare != 0) continue;  // came with the bits before it
    const int left = kBits - bit, there = kSpare - pos % kSpare;
    const int count = left < there ? left : there;
    const uint32_t mask = (((1u << count) - 1) << bit) * 0x01010101u;
    out |= (words[pos / kSpare] >> (kBits + pos % kSpare - bit)) & mask;
  }
  return out;
}

// The word with the codes of rows 8 kHalf.. and run kRun of a tile, each at kCodeShift of its byte.
template <int kBits, int kHalf, int kRun>
__device__ __forceinline__ uint32_t CodeWord(const uint32_t (&words)[kBits]) {
  constexpr int kVirtual = 4 * kHalf + kRun;
  if constexpr (kBits >= 5 && kVirtual < kBits) {
    return words[kVirtual];
  } else if constexpr (kBits >= 5) {
    return SpareWord<kBits, kVirtual>(words);
  } else if constexpr (kBits == 3 && kRun == 3) {
    return (words[0] >> 3 & 0x11111111u) | (words[1] >> 2 & 0x22222222u) |
           (words[2] >> 1 & 0x44444444u);
  } else if constexpr (kBits == 2) {
    return words[kRun % 2];
  } else {
    return words[kRun];
  }
}

template <int kBits, int kHalf, int kRun>
constexpr int kCodeShift = kBits >= 5 ? 0 : 4 * kHalf + (kBits == 2 ? kRun / 2 * 2 : 0);

// What makes code - zero of 1024 + 2^kShift code, in both halves.
template <int kShift>
__device__ __forceinline__ uint32_t ZeroTerm(uint32_t zero) {
  constexpr uint32_t kOffset = 0x6400u - (kShift << 10);  // 1024 / 2^kShift
  const uint32_t sum = kOffset + (zero << kShift);
  return (kShift == 0 ? sum : 0x8000u | sum) * 0x00010001u;
}

template <int kShift>
__device__ __forceinline__ uint32_t Centred(uint32_t pair, uint32_t term) {
  if constexpr (kShift == 0) {
    return HSub2(pair, term);
  } else {
    return HFma2(pair, (0x3c00u - (kShift << 10)) * 0x00010001u, term);
  }
}

// Zero points of rows g and g + 8, as the codes of this width need them.
template <int kBits>
struct ZeroTerms {
  static constexpr int kShifts = kBits == 2 ? 2 : 1;
  uint32_t term[2][kShifts];

  __device__ __forceinline__ void Set(uint32_t zero, uint32_t zero8) {
    term[0][0] = ZeroTerm<kCodeShift<kBits, 0, 0>>(zero);
    term[1][0] = ZeroTerm<kCodeShift<kBits, 1, 0>>(zero8);
    if constexpr (kBits == 2) {
      term[0][1] = ZeroTerm<kCodeShift<kBits, 0, 2>>(zero);
      term[1][1] = ZeroTerm<kCodeShift<kBits, 1, 2>>(zero8);
    }
  }
};

template <int kBits, int kHalf, int kRun>
__device__ __forceinline__ void HalfFragment(const uint32_t (&words)[kBits],
                                             const ZeroTerms<kBits>& zeros, uint32_t half_1024,
                                             uint32_t (&a)[4]) {
  constexpr int kShift = kCodeShift<kBits, kHalf, kRun>;
  constexpr uint32_t kMask = (((1u << kBits) - 1) << kShift) * 0x00010001u;
  const uint32_t word = CodeWord<kBits, kHalf, kRun>(words);
  const uint32_t term = zeros.term[kHalf][kBits == 2 ? kRun / 2 : 0];
  a[kHalf] = Centred<kShift>((word & kMask) | half_1024, term);
  a[2 + kHalf] = Centred<kShift>((word >> 8 & kMask) | half_1024, term);
}

// The A operand of run kRun of the tile. half_1024: LinearLaunch's.
template <int kBits, int kRun>
__device__ __forceinline__ void Fragment(const uint32_t (&words)[kBits],
                                         const ZeroTerms<kBits>& zeros, uint32_t half_1024,
                                         uint32_t (&a)[4]) {
  HalfFragment<kBits, 0, kRun>(words, zeros, half_1024, a);
  HalfFragment<kBits, 1, kRun>(words, zeros, half_1024, a);
}

}  // namespace bitshard::cuda
