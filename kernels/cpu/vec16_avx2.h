// 16 lanes of f32 on AVX2, two vectors: the vocabulary in which kernels/cpu/*_body.inc are written
// once for all vector ISAs.
#pragma once

#include <cstdint>

#include "kernels/base/math_constants.h"
#include "kernels/cpu/isa_region.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX2

struct Vec16 {
  __m256 low, high;
};
inline constexpr int kAccumulators = 6;  // that fit into registers beside operands

ISA_INLINE Vec16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
ISA_INLINE Vec16 Set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
ISA_INLINE Vec16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
ISA_INLINE __m256 WidenBf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
ISA_INLINE Vec16 LoadBf16(const uint16_t* p) {
  return {WidenBf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          WidenBf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
ISA_INLINE Vec16 LoadF16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
ISA_INLINE void Store(float* p, Vec16 a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
ISA_INLINE Vec16 Add(Vec16 a, Vec16 b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
ISA_INLINE Vec16 Sub(Vec16 a, Vec16 b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
ISA_INLINE Vec16 Mul(Vec16 a, Vec16 b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
ISA_INLINE Vec16 Div(Vec16 a, Vec16 b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
ISA_INLINE Vec16 Fma(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
ISA_INLINE Vec16 NegFma(Vec16 a, Vec16 b, Vec16 c) {  // c - a b
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
ISA_INLINE Vec16 Negate(Vec16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.low, sign), _mm256_xor_ps(a.high, sign)};
}
// a > b ? a : b: b when either is NaN.
ISA_INLINE Vec16 Greater(Vec16 a, Vec16 b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
ISA_INLINE Vec16 Smaller(Vec16 a, Vec16 b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}

// Lanes [begin, end) of a, `other` elsewhere.
ISA_INLINE __m256 KeepHalf(__m256 a, __m256i lane, int begin, int end, __m256 other) {
  const __m256i from = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(begin - 1));
  const __m256i to = _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane);
  return _mm256_blendv_ps(other, a, _mm256_castsi256_ps(_mm256_and_si256(from, to)));
}
ISA_INLINE Vec16 KeepLanes(Vec16 a, int begin, int end, Vec16 other) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {KeepHalf(a.low, lane, begin, end, other.low),
          KeepHalf(a.high, _mm256_add_epi32(lane, _mm256_set1_epi32(8)), begin, end, other.high)};
}

// p 2^n, where shifted = n + kRoundShiftF32: in two factors, as ExpF32.
ISA_INLINE __m256 ScaleHalf(__m256 p, __m256 shifted) {
  const __m256i n =
      _mm256_sub_epi32(_mm256_castps_si256(shifted),
                       _mm256_castps_si256(_mm256_set1_ps(math_constants::kRoundShiftF32)));
  const __m256i half = _mm256_srai_epi32(n, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
  const __m256 b =
      _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, a), b);
}
ISA_INLINE Vec16 ScaleByExponent(Vec16 p, Vec16 shifted) {
  return {ScaleHalf(p.low, shifted.low), ScaleHalf(p.high, shifted.high)};
}

// The tree l+8, l+4, l+2, l+1 over lanes in natural order.
ISA_INLINE float SumTree(Vec16 a) {
  const __m256 s8 = _mm256_add_ps(a.low, a.high);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
// No lane is NaN.
ISA_INLINE float MaxLane(Vec16 a) {
  const __m256 s8 = _mm256_max_ps(a.low, a.high);
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

ISA_END

}  // namespace
}  // namespace bitshard
