// A group's scales, minima and zero points of a row tile, slots 0-7 (half 0) or 8-15 (half 1) in a
// vector: kernels/tensor/scale_plane.h in AVX2. The switch is the same for all groups of a matrix,
// so it predicts.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/tensor/scale_plane.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX2

ISA_INLINE __m128i LoadBytes8(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
ISA_INLINE __m256 LoadHalf8(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
ISA_INLINE __m256 BytesToFloat(__m128i bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

ISA_INLINE const uint8_t* ScaleRecord(const ScaleView& view, int64_t tile, int64_t group) {
  if (!IsSuper(view.kind)) return view.plane + tile * view.tile_bytes + group * view.record_bytes;
  return view.plane + tile * view.tile_bytes + group / view.record_groups * view.record_bytes;
}

// E4m3ToF32 of 8 codes: a float of the same digits, 2^120 too small.
ISA_INLINE __m256 E4m3ToFloat(__m256i code) {
  const __m256i digits = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
  const __m256 magnitude =
      _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(digits, 20)), _mm256_set1_ps(0x1p120f));
  const __m256i sign = _mm256_slli_epi32(_mm256_sub_epi32(code, digits), 24);
  const __m256i nan = _mm256_cmpeq_epi32(digits, _mm256_set1_epi32(0x7f));
  return _mm256_or_ps(magnitude, _mm256_castsi256_ps(_mm256_or_si256(sign, nan)));
}

// E8m0ToF32 of 8 codes; 0 and 255, which are no exponents of a float, need one bit more.
ISA_INLINE __m256 E8m0ToFloat(__m256i code) {
  const __m256i odd = _mm256_or_si256(_mm256_cmpeq_epi32(code, _mm256_setzero_si256()),
                                      _mm256_cmpeq_epi32(code, _mm256_set1_epi32(255)));
  return _mm256_castsi256_ps(_mm256_or_si256(_mm256_slli_epi32(code, 23),
                                             _mm256_and_si256(odd, _mm256_set1_epi32(0x00400000))));
}

// Whether one number of a shared plane serves all rows of a tile.
ISA_INLINE bool TileSharesScale(const ScaleView& view, int64_t tile) {
  if (view.block_rows == 0) return true;
  const int64_t first = tile * 16, end = first + 16 < view.rows ? first + 16 : view.rows;
  return (first + view.first_row_offset) / view.block_rows ==
         (end - 1 + view.first_row_offset) / view.block_rows;
}

ISA_INLINE __m256 LoadScales(const ScaleView& view, int64_t tile, int64_t group, int half) {
  if (!view.shared_rows) {
    const uint8_t* record = ScaleRecord(view, tile, group);
    const int64_t sub = IsSuper(view.kind) ? group % view.record_groups : 0;
    switch (view.kind) {
      case ScaleKind::kF16:
        return LoadHalf8(record + 16 * half);
      case ScaleKind::kBf16:
        return _mm256_castsi256_ps(_mm256_slli_epi32(
            _mm256_cvtepu16_epi32(
                _mm_loadu_si128(reinterpret_cast<const __m128i*>(record + 16 * half))),
            16));
      case ScaleKind::kF32:
        return _mm256_loadu_ps(reinterpret_cast<const float*>(record) + 8 * half);
      case ScaleKind::kE8m0:
        return E8m0ToFloat(_mm256_cvtepu8_epi32(LoadBytes8(record + 8 * half)));
      case ScaleKind::kE4m3:
        return _mm256_mul_ps(E4m3ToFloat(_mm256_cvtepu8_epi32(LoadBytes8(record + 8 * half))),
                             _mm256_set1_ps(view.factor));
      case ScaleKind::kSuperS8:
        return _mm256_mul_ps(LoadHalf8(record + 16 * half),
                             _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(
                                 LoadBytes8(record + 32 + sub * 16 + 8 * half))));
      case ScaleKind::kSuperU8Min:
        return _mm256_mul_ps(LoadHalf8(record + 16 * half),
                             BytesToFloat(LoadBytes8(record + 64 + sub * 32 + 8 * half)));
      case ScaleKind::kSuperU4Min:
        return _mm256_mul_ps(
            LoadHalf8(record + 16 * half),
            BytesToFloat(
                _mm_and_si128(LoadBytes8(record + 64 + sub * 16 + 8 * half), _mm_set1_epi8(15))));
      default:
        break;
    }
  } else if (TileSharesScale(view, tile)) {
    return _mm256_set1_ps(ScaleAt(view, tile, 0, group));
  }
  alignas(32) float scale[16];
  ScalesOfGroup(view, tile, group, scale);
  return _mm256_load_ps(scale + 8 * half);
}

// REQUIRES: view.has_min.
ISA_INLINE __m256 LoadMins(const ScaleView& view, int64_t tile, int64_t group, int half) {
  const uint8_t* record = ScaleRecord(view, tile, group);
  const __m256 sign = _mm256_set1_ps(-0.0f);
  if (view.kind == ScaleKind::kSuperU8Min) {
    const __m128i m = LoadBytes8(record + 64 + group % view.record_groups * 32 + 16 + 8 * half);
    return _mm256_xor_ps(_mm256_mul_ps(LoadHalf8(record + 32 + 16 * half), BytesToFloat(m)), sign);
  }
  if (view.kind == ScaleKind::kSuperU4Min) {
    const __m128i m = LoadBytes8(record + 64 + group % view.record_groups * 16 + 8 * half);
    const __m128i high = _mm_and_si128(_mm_srli_epi16(m, 4), _mm_set1_epi8(15));
    return _mm256_xor_ps(_mm256_mul_ps(LoadHalf8(record + 32 + 16 * half), BytesToFloat(high)),
                         sign);
  }
  return LoadHalf8(record + 16 * ScaleBytes(view.kind) + 16 * half);
}

// The zero point of every slot as int32.
ISA_INLINE __m256i LoadZeros(const ScaleView& view, int64_t tile, int64_t group, int half) {
  if (!view.has_zeros) return _mm256_set1_epi32(view.zero_point);
  const uint8_t* zeros = ScaleRecord(view, tile, group) + 16 * ScaleBytes(view.kind);
  if (view.bits == 2) {
    uint16_t packed;
    __builtin_memcpy(&packed, zeros + 2 * half, sizeof(packed));
    const __m256i shifts = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(packed), shifts),
                            _mm256_set1_epi32(3));
  }
  return _mm256_cvtepu8_epi32(LoadBytes8(zeros + 8 * half));
}

ISA_END

}  // namespace
}  // namespace bitshard
