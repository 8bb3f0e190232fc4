// Single elements of a matrix in the device's order (kernels/tensor/device_matrix.h), by the
// definition.
#pragma once

#include "kernels/cuda/dequant_scale.cuh"
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"

namespace bitshard::cuda {

// Word `word` of a lane of a tile: chunks of 4, 2 and 1 words.
__device__ __forceinline__ uint32_t TileWord(const uint8_t* tile, int bits, int lane, int word) {
  const int fours = bits / 4 * 4;
  if (word < fours)
    return reinterpret_cast<const uint32_t*>(tile)[word / 4 * 128 + lane * 4 + word % 4];
  const auto* const rest = reinterpret_cast<const uint32_t*>(tile) + 32 * fours;
  word -= fours;
  if (bits % 4 < 2) return rest[lane];
  return word < 2 ? rest[lane * 2 + word] : rest[64 + lane];
}

// Element (row % 16, col % 64) of a tile; its place as in kernels/tensor/p16x64.h.
__device__ __forceinline__ int CodeOf(const uint8_t* tile, int bits, int row, int col) {
  const int half = row % 16 / 8, run = col % 64 / 16, q = col % 16;
  const int lane = 4 * (row % 8) + q % 8 / 2;
  const int byte = 8 * (q / 8 + 2 * (q % 2));  // its first bit
  const auto piece = [&](int word, int bit, int count) {
    return static_cast<int>(TileWord(tile, bits, lane, word) >> (byte + bit) & ((1u << count) - 1));
  };
  if (bits == 2) return piece(run % 2, 4 * half + run / 2 * 2, 2);
  if (bits <= 4 && (bits == 4 || run < 3)) return piece(run, 4 * half, bits);
  if (bits == 3) {
    const int bit = 4 * half + 3;
    return piece(0, bit, 1) | piece(1, bit, 1) << 1 | piece(2, bit, 1) << 2;
  }
  const int place = 4 * half + run;
  if (place < bits) return piece(place, 0, bits);
  const int spare = 8 - bits;
  int code = 0;
  for (int i = 0; i < bits; ++i) {
    const int pos = (place - bits) * bits + i;
    code |= piece(pos / spare, bits + pos % spare, 1) << i;
  }
  return code;
}

__device__ __forceinline__ int CodeOf(const Weight& w, int64_t row, int64_t col) {
  const uint8_t* const tile =
      w.codes + row / 16 * w.tile_bytes + col / 64 * (int64_t{128} * w.bits);
  return CodeOf(tile, w.bits, static_cast<int>(row % 16), static_cast<int>(col % 64));
}

// Of f32, f16 and bf16 matrices.
__device__ __forceinline__ float DenseValueOf(const Weight& w, int64_t row, int64_t col) {
  const uint8_t* const tile = w.codes + row / 16 * w.tile_bytes;
  const int r = static_cast<int>(row % 16), c = static_cast<int>(col % 16);
  const int64_t run = col / 16 * 256;
  if (w.type == WeightType::kF32) return reinterpret_cast<const float*>(tile)[run + r * 16 + c];
  const int lane = 4 * (r % 8) + c % 8 / 2;
  const uint16_t bits =
      reinterpret_cast<const uint16_t*>(tile)[run + lane * 8 + c % 2 + r / 8 * 2 + c / 8 * 4];
  return w.type == WeightType::kF16 ? HalfToFloat(bits) : __uint_as_float(uint32_t{bits} << 16);
}

__device__ __forceinline__ float ValueOf(const Weight& w, int64_t row, int64_t col) {
  if (w.type != WeightType::kInt) return DenseValueOf(w, row, col);
  const int64_t group = (col + w.scale.first_group_offset) / w.scale.group_size;
  const GroupNumbers numbers = NumbersOf(w.scale, row, group);
  const auto centred = static_cast<float>(CodeOf(w, row, col) - static_cast<int>(numbers.zero));
  return w.scale.has_min ? fmaf(centred, numbers.scale, numbers.min)
                         : __fmul_rn(centred, numbers.scale);
}

}  // namespace bitshard::cuda
