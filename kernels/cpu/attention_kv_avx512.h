// Elements of the KV cache from and to 16 lanes of f32 on AVX-512, with the bits of
// kernels/base/float_types.h and kernels/registry/attention_codes.h.
#pragma once

#include "kernels/cpu/vec16_avx512.h"
#include "kernels/registry/attention_codes.h"
#include "kernels/tensor/kv_layout.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX512VNNI

// 16 elements from `index` on.
template <KvType kType>
ISA_INLINE Vec16 LoadKv(const uint8_t* plane, int64_t index) {
  if constexpr (kType == KvType::kF32) {
    return Load(reinterpret_cast<const float*>(plane) + index);
  } else if constexpr (kType == KvType::kBf16) {
    return LoadBf16(reinterpret_cast<const uint16_t*>(plane) + index);
  } else if constexpr (kType == KvType::kF16) {
    return LoadF16(reinterpret_cast<const uint16_t*>(plane) + index);
  } else {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(plane + index));
    if constexpr (kType == KvType::kInt8) return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))};
    // The sign stands twice after the shift: the lower one goes.
    const __m256i half = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
    return {
        _mm512_cvtph_ps(_mm256_and_si256(half, _mm256_set1_epi16(static_cast<int16_t>(0xbfff))))};
  }
}

// 16 elements to `to`; the scale is of the 8-bit types, and usable.
template <KvType kType>
ISA_INLINE void StoreKv(uint8_t* to, Vec16 x, Vec16 scale) {
  if constexpr (kType == KvType::kF32) {
    Store(reinterpret_cast<float*>(to), x);
  } else if constexpr (kType == KvType::kBf16) {
    const __m512i u = _mm512_castps_si512(x.v);
    const __m512i upper = _mm512_srli_epi32(u, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet)));
  } else if constexpr (kType == KvType::kF16) {
    // NaN without its payload.
    const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    const __m512i quiet = _mm512_or_si512(_mm512_and_si512(_mm512_castps_si512(x.v), sign),
                                          _mm512_set1_epi32(0x7fc00000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    const __m512 clean = _mm512_mask_mov_ps(x.v, nan, _mm512_castsi512_ps(quiet));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  } else if constexpr (kType == KvType::kInt8) {
    const Vec16 y = Smaller(Greater(Div(x, scale), Set(-kInt8Largest)), Set(kInt8Largest));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(y.v)));
  } else {
    const __m512i bits = _mm512_castps_si512(Div(x, scale).v);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const Vec16 y = Smaller({_mm512_castsi512_ps(magnitude)}, Set(kFp8Largest));
    const __m512i m = _mm512_castps_si512(y.v);
    const Vec16 shift = Set(kFp8SubnormalShift);
    const __m512i subnormal =
        _mm512_sub_epi32(_mm512_castps_si512(Add(y, shift).v), _mm512_castps_si512(shift.v));
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(m, 20), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(m, _mm512_set1_epi32(0x7ffff)), odd), 20);
    const __m512i normal = _mm512_sub_epi32(rounded, _mm512_set1_epi32(112 << 3));
    const __mmask16 small = _mm512_cmp_ps_mask(y.v, Set(kFp8SmallestNormal).v, _CMP_LT_OQ);
    const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
    const __m512i code = _mm512_or_si512(_mm512_mask_mov_epi32(normal, small, subnormal), sign);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(code));
  }
}

// The largest magnitude of x [count], count a multiple of 16, as bits: NaN > infinity > finite.
ISA_INLINE uint32_t LargestMagnitudeBits(const float* x, int count) {
  __m512i max = _mm512_setzero_si512();
  for (int d = 0; d < count; d += 16) {
    max = _mm512_max_epi32(
        max, _mm512_and_si512(_mm512_castps_si512(Load(x + d).v), _mm512_set1_epi32(0x7fffffff)));
  }
  const __m256i m8 =
      _mm256_max_epi32(_mm512_castsi512_si256(max), _mm512_extracti64x4_epi64(max, 1));
  const __m128i m4 = _mm_max_epi32(_mm256_castsi256_si128(m8), _mm256_extracti128_si256(m8, 1));
  const __m128i m2 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(m2, _mm_shuffle_epi32(m2, 0xb1))));
}

ISA_END

}  // namespace
}  // namespace bitshard
