// A group's scales, minima and zero points of a row tile, 16 slots in a vector:
// kernels/tensor/scale_plane.h in AVX-512. The switch is the same for all groups of a matrix, so it
// predicts.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/tensor/scale_plane.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX512VNNI

ISA_INLINE __m128i LoadBytes16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
ISA_INLINE __m512 LoadHalf16(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
ISA_INLINE __m512 BytesToFloat(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

ISA_INLINE __m512 E4m3ToFloat(__m512i code) {
  const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi32(0x7f));
  const __m512i sign = _mm512_slli_epi32(_mm512_sub_epi32(code, magnitude), 24);
  __m512i bits = _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), _mm512_set1_epi32(120 << 23));
  const __m512 small = _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(0x1p-9f));
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8)),
                               _mm512_castps_si512(small));
  bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f)),
                               _mm512_set1_epi32(0x7fc00000));
  return _mm512_castsi512_ps(_mm512_or_si512(bits, sign));
}

ISA_INLINE const uint8_t* ScaleRecord(const ScaleView& view, int64_t tile, int64_t group) {
  if (!IsSuper(view.kind)) return view.plane + tile * view.tile_bytes + group * view.record_bytes;
  return view.plane + tile * view.tile_bytes + group / view.record_groups * view.record_bytes;
}

ISA_INLINE __m512 LoadScales(const ScaleView& view, int64_t tile, int64_t group) {
  if (!view.shared_rows) {
    const uint8_t* record = ScaleRecord(view, tile, group);
    const int64_t sub = IsSuper(view.kind) ? group % view.record_groups : 0;
    switch (view.kind) {
      case ScaleKind::kF16:
        return LoadHalf16(record);
      case ScaleKind::kBf16:
        return _mm512_castsi512_ps(_mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(record))),
            16));
      case ScaleKind::kF32:
        return _mm512_loadu_ps(record);
      case ScaleKind::kSuperS8:
        return _mm512_mul_ps(
            LoadHalf16(record),
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(LoadBytes16(record + 32 + sub * 16))));
      case ScaleKind::kSuperU8Min:
        return _mm512_mul_ps(LoadHalf16(record), BytesToFloat(LoadBytes16(record + 64 + sub * 32)));
      case ScaleKind::kSuperU4Min:
        return _mm512_mul_ps(
            LoadHalf16(record),
            BytesToFloat(_mm_and_si128(LoadBytes16(record + 64 + sub * 16), _mm_set1_epi8(15))));
      case ScaleKind::kE8m0: {
        const __m512i e = _mm512_cvtepu8_epi32(LoadBytes16(record));
        __m512i bits = _mm512_slli_epi32(e, 23);
        bits = _mm512_mask_mov_epi32(bits, _mm512_testn_epi32_mask(e, e),
                                     _mm512_set1_epi32(0x00400000));  // 2^-127
        bits = _mm512_mask_mov_epi32(bits, _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255)),
                                     _mm512_set1_epi32(0x7fc00000));
        return _mm512_castsi512_ps(bits);
      }
      case ScaleKind::kE4m3:
        return _mm512_mul_ps(E4m3ToFloat(_mm512_cvtepu8_epi32(LoadBytes16(record))),
                             _mm512_set1_ps(view.factor));
      case ScaleKind::kNested:
        break;
    }
  }
  if (view.shared_rows) {
    const int64_t first = tile * 16 + view.first_row_offset;
    if (view.block_rows == 0 || first / view.block_rows == (first + 15) / view.block_rows)
      return _mm512_set1_ps(ScaleAt(view, tile, 0, group));
  }
  alignas(64) float scale[16];
  ScalesOfGroup(view, tile, group, scale);
  return _mm512_load_ps(scale);
}

// REQUIRES: view.has_min.
ISA_INLINE __m512 LoadMins(const ScaleView& view, int64_t tile, int64_t group) {
  const uint8_t* record = ScaleRecord(view, tile, group);
  const __m512 sign = _mm512_set1_ps(-0.0f);
  if (view.kind == ScaleKind::kSuperU8Min) {
    const __m128i m = LoadBytes16(record + 64 + group % view.record_groups * 32 + 16);
    return _mm512_xor_ps(_mm512_mul_ps(LoadHalf16(record + 32), BytesToFloat(m)), sign);
  }
  if (view.kind == ScaleKind::kSuperU4Min) {
    const __m128i m = LoadBytes16(record + 64 + group % view.record_groups * 16);
    const __m128i high = _mm_and_si128(_mm_srli_epi16(m, 4), _mm_set1_epi8(15));
    return _mm512_xor_ps(_mm512_mul_ps(LoadHalf16(record + 32), BytesToFloat(high)), sign);
  }
  return LoadHalf16(record + 16 * ScaleBytes(view.kind));
}

// The zero point of every slot as int32.
ISA_INLINE __m512i LoadZeros(const ScaleView& view, int64_t tile, int64_t group) {
  if (!view.has_zeros) return _mm512_set1_epi32(view.zero_point);
  const uint8_t* zeros = ScaleRecord(view, tile, group) + 16 * ScaleBytes(view.kind);
  if (view.bits == 2) {
    int32_t packed;
    __builtin_memcpy(&packed, zeros, sizeof(packed));
    const __m512i shifts =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_and_si512(_mm512_srlv_epi32(_mm512_set1_epi32(packed), shifts),
                            _mm512_set1_epi32(3));
  }
  return _mm512_cvtepu8_epi32(LoadBytes16(zeros));
}

// Some groups' numbers, slot order; rows are those of a record.
struct alignas(64) GroupNumbers {
  float scale[16];
  float min[16];     // with view.has_min
  int32_t zero[16];  // with view.has_zeros
};

// Groups [group, group + count). A call and not inline: it is large. Asks for the records that come
// 2 KiB later.
__attribute__((noinline)) inline void LoadGroups(const ScaleView& view, int64_t tile, int64_t group,
                                                 int count, GroupNumbers* out) {
  for (const int64_t end = group + count; group < end; ++group, ++out) {
    const uint8_t* record = ScaleRecord(view, tile, group);
    _mm_prefetch(reinterpret_cast<const char*>(record) + 2048, _MM_HINT_T0);
    _mm512_store_ps(out->scale, LoadScales(view, tile, group));
    if (view.has_min) _mm512_store_ps(out->min, LoadMins(view, tile, group));
    if (view.has_zeros) _mm512_store_si512(out->zero, LoadZeros(view, tile, group));
  }
}

ISA_END

}  // namespace
}  // namespace bitshard
