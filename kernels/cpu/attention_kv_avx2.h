// Elements of the KV cache from and to 16 lanes of f32 on AVX2, with the bits of
// kernels/base/float_types.h and kernels/registry/attention_codes.h.
#pragma once

#include "kernels/cpu/vec16_avx2.h"
#include "kernels/registry/attention_codes.h"
#include "kernels/tensor/kv_layout.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX2

// 8 codes in the lower half.
template <KvType kType>
ISA_INLINE __m256 DecodeHalf(__m128i codes) {
  if (kType == KvType::kInt8) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
  // The sign stands twice after the shift: the lower one goes.
  const __m128i half = _mm_slli_epi16(_mm_cvtepi8_epi16(codes), 7);
  return _mm256_cvtph_ps(_mm_and_si128(half, _mm_set1_epi16(static_cast<int16_t>(0xbfff))));
}

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
    return {DecodeHalf<kType>(codes), DecodeHalf<kType>(_mm_srli_si128(codes, 8))};
  }
}

ISA_INLINE __m256i EncodeBf16Half(__m256 x) {
  const __m256i u = _mm256_castps_si256(x);
  const __m256i upper = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
  return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
}
ISA_INLINE __m128i EncodeF16Half(__m256 x) {
  // NaN without its payload.
  const __m256 quiet = _mm256_or_ps(_mm256_and_ps(x, _mm256_set1_ps(-0.0f)),
                                    _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)));
  const __m256 clean = _mm256_blendv_ps(x, quiet, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_cvtps_ph(clean, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ISA_INLINE __m256i EncodeFp8Half(__m256 quotient) {
  const __m256i bits = _mm256_castps_si256(quotient);
  const __m256 magnitude =
      _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
  const __m256 y = _mm256_min_ps(magnitude, _mm256_set1_ps(kFp8Largest));
  const __m256i m = _mm256_castps_si256(y);
  const __m256 shift = _mm256_set1_ps(kFp8SubnormalShift);
  const __m256i subnormal =
      _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(y, shift)), _mm256_castps_si256(shift));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(m, 20), _mm256_set1_epi32(1));
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(m, _mm256_set1_epi32(0x7ffff)), odd), 20);
  const __m256i normal = _mm256_sub_epi32(rounded, _mm256_set1_epi32(112 << 3));
  const __m256 small = _mm256_cmp_ps(y, _mm256_set1_ps(kFp8SmallestNormal), _CMP_LT_OQ);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  return _mm256_or_si256(_mm256_blendv_epi8(normal, subnormal, _mm256_castps_si256(small)), sign);
}
// Lanes of 32 bits that fit, in order.
ISA_INLINE __m256i PackWords(__m256i low, __m256i high) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

// 16 elements to `to`; the scale is of the 8-bit types, and usable.
template <KvType kType>
ISA_INLINE void StoreKv(uint8_t* to, Vec16 x, Vec16 scale) {
  if constexpr (kType == KvType::kF32) {
    Store(reinterpret_cast<float*>(to), x);
  } else if constexpr (kType == KvType::kBf16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        PackWords(EncodeBf16Half(x.low), EncodeBf16Half(x.high)));
  } else if constexpr (kType == KvType::kF16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), EncodeF16Half(x.low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + 1, EncodeF16Half(x.high));
  } else if constexpr (kType == KvType::kInt8) {
    const Vec16 y = Smaller(Greater(Div(x, scale), Set(-kInt8Largest)), Set(kInt8Largest));
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(y.low), _mm256_cvtps_epi32(y.high)), 0xd8);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to),
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  } else {
    const Vec16 y = Div(x, scale);
    const __m256i words = PackWords(EncodeFp8Half(y.low), EncodeFp8Half(y.high));
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(to),
        _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
  }
}

// The largest magnitude of x [count], count a multiple of 16, as bits: NaN > infinity > finite.
ISA_INLINE uint32_t LargestMagnitudeBits(const float* x, int count) {
  __m256i max = _mm256_setzero_si256();
  for (int d = 0; d < count; d += 8) {
    max = _mm256_max_epi32(max, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + d)),
                                                 _mm256_set1_epi32(0x7fffffff)));
  }
  const __m128i m4 = _mm_max_epi32(_mm256_castsi256_si128(max), _mm256_extracti128_si256(max, 1));
  const __m128i m2 = _mm_max_epi32(m4, _mm_shuffle_epi32(m4, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(m2, _mm_shuffle_epi32(m2, 0xb1))));
}

ISA_END

}  // namespace
}  // namespace bitshard
