// 16 lanes of f32 on AVX-512: the vocabulary in which kernels/cpu/*_body.inc are written once for
// all vector ISAs.
#pragma once

#include <cstdint>

#include "kernels/base/math_constants.h"
#include "kernels/cpu/isa_region.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX512VNNI

struct Vec16 {
  __m512 v;
};
inline constexpr int kAccumulators = 24;  // that fit into registers beside operands

ISA_INLINE Vec16 Zero() { return {_mm512_setzero_ps()}; }
ISA_INLINE Vec16 Set(float x) { return {_mm512_set1_ps(x)}; }
ISA_INLINE Vec16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
ISA_INLINE Vec16 LoadBf16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
ISA_INLINE Vec16 LoadF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
ISA_INLINE void Store(float* p, Vec16 a) { _mm512_storeu_ps(p, a.v); }
ISA_INLINE Vec16 Add(Vec16 a, Vec16 b) { return {_mm512_add_ps(a.v, b.v)}; }
ISA_INLINE Vec16 Sub(Vec16 a, Vec16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
ISA_INLINE Vec16 Mul(Vec16 a, Vec16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
ISA_INLINE Vec16 Div(Vec16 a, Vec16 b) { return {_mm512_div_ps(a.v, b.v)}; }
ISA_INLINE Vec16 Fma(Vec16 a, Vec16 b, Vec16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
ISA_INLINE Vec16 NegFma(Vec16 a, Vec16 b, Vec16 c) {
  return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}  // c - a b
ISA_INLINE Vec16 Negate(Vec16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
// a > b ? a : b: b when either is NaN.
ISA_INLINE Vec16 Greater(Vec16 a, Vec16 b) { return {_mm512_max_ps(a.v, b.v)}; }
ISA_INLINE Vec16 Smaller(Vec16 a, Vec16 b) { return {_mm512_min_ps(a.v, b.v)}; }

// Lanes [begin, end) of a, `other` elsewhere.
ISA_INLINE Vec16 KeepLanes(Vec16 a, int begin, int end, Vec16 other) {
  const unsigned mask = ((1u << end) - 1) & ~((1u << begin) - 1);
  return {_mm512_mask_mov_ps(other.v, static_cast<__mmask16>(mask), a.v)};
}

// p 2^n, where shifted = n + kRoundShiftF32; rounded once, as ExpF32 in its two factors.
ISA_INLINE Vec16 ScaleByExponent(Vec16 p, Vec16 shifted) {
  return {_mm512_scalef_ps(
      p.v, _mm512_sub_ps(shifted.v, _mm512_set1_ps(math_constants::kRoundShiftF32)))};
}

// The tree l+8, l+4, l+2, l+1 over lanes in natural order.
ISA_INLINE float SumTree(Vec16 a) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
// No lane is NaN.
ISA_INLINE float MaxLane(Vec16 a) {
  const __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_max_ss(s2, _mm_movehdup_ps(s2)));
}

ISA_END

}  // namespace
}  // namespace bitshard
