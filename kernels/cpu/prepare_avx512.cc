// The forms of one row of activations on AVX-512; same operations as kernels/reference/prepare.cc.
#include "kernels/cpu/isa_region.h"
#include "kernels/registry/activations.h"
#include "kernels/registry/prepare_kernel.h"

namespace bitshard {
namespace {

constexpr int kRun = 16;
constexpr int kA16Runs = kActivationGroup / kRun;
constexpr int kA8Runs = kA8Group / kRun;

ISA_BEGIN_AVX512VNNI

// Columns [0, 16) of a run in lane order; those from `count` on are 0.
ISA_INLINE __m512 LoadRun(const float* x, int64_t count) {
  const __m512i columns = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  const __mmask16 there =
      count >= kRun ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << count) - 1);
  return _mm512_permutexvar_ps(columns, _mm512_maskz_loadu_ps(there, x));
}

// Of a group with these magnitudes; false: all of its q are 0.
ISA_INLINE bool ScaleOf(__m512i amax, float steps, float* scale) {
  const int32_t amax_bits = _mm512_reduce_max_epi32(amax);
  if (amax_bits >= 0x7f800000) {
    *scale = __builtin_nanf("");
    return false;
  }
  const float s = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(amax_bits))) / steps;
  const bool zero = s < kSmallestActivationScale;
  *scale = zero ? 0.0f : s;
  return !zero;
}

ISA_INLINE __m512i Magnitude(__m512 v) {
  return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
}

ISA_INLINE __m512i Quotient(__m512 v, bool some, __m512 divisor) {
  return some ? _mm512_cvtps_epi32(_mm512_div_ps(v, divisor)) : _mm512_setzero_si512();
}

void QuantizeA16(const PrepareArgs& args, int64_t k, int64_t count, float* scale) {
  __m512 x[kA16Runs];
  __m512i amax = _mm512_setzero_si512();
  ISA_UNROLL
  for (int j = 0; j < kA16Runs; ++j) {
    const int64_t left = count - kRun * j;
    x[j] = left > 0 ? LoadRun(args.x + k + kRun * j, left) : _mm512_setzero_ps();
    amax = _mm512_max_epi32(amax, Magnitude(x[j]));
  }
  const bool some = ScaleOf(amax, kActivationSteps, scale);
  const __m512 divisor = _mm512_set1_ps(*scale);
  ISA_UNROLL
  for (int j = 0; j < kA16Runs; ++j) {
    if (kRun * j >= count) break;
    const int64_t at = k + kRun * j;
    const __m512i q = Quotient(x[j], some, divisor);
    const __m512i hi = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
    const __m512i lo = _mm512_sub_epi32(q, _mm512_slli_epi32(hi, 8));
    const __m256i narrow = _mm512_cvtepi32_epi16(q);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(args.q + at), narrow);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(args.hi + at), _mm512_cvtepi32_epi8(hi));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(args.lo + at), _mm512_cvtepi32_epi8(lo));
    args.run_sums[at / kRun] = _mm512_reduce_add_epi32(q);
    const __m256i pairs = _mm256_maskz_madd_epi16(0x55, narrow, _mm256_shuffle_epi32(narrow, 0xb1));
    args.pair_sums[at / kRun] = _mm512_reduce_add_epi32(_mm512_zextsi256_si512(pairs));
  }
}

void QuantizeA8(const PrepareArgs& args, int64_t k, int64_t count, float* scale) {
  __m512 x[kA8Runs];
  __m512i amax = _mm512_setzero_si512();
  ISA_UNROLL
  for (int j = 0; j < kA8Runs; ++j) {
    const int64_t left = count - kRun * j;
    x[j] = left > 0 ? LoadRun(args.x + k + kRun * j, left) : _mm512_setzero_ps();
    amax = _mm512_max_epi32(amax, Magnitude(x[j]));
  }
  const bool some = ScaleOf(amax, kA8Steps, scale);
  const __m512 divisor = _mm512_set1_ps(*scale);
  ISA_UNROLL
  for (int j = 0; j < kA8Runs; ++j) {
    if (kRun * j >= count) break;
    const int64_t at = k + kRun * j;
    const __m512i q = Quotient(x[j], some, divisor);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(args.a8 + at), _mm512_cvtepi32_epi8(q));
    args.a8_run_sums[at / kRun] = _mm512_reduce_add_epi32(q);
  }
}

void Run(const PrepareArgs& args) {
  if (args.f32 != nullptr) {
    for (int64_t k = 0; k < args.cols; k += kRun)
      _mm512_storeu_ps(args.f32 + k, LoadRun(args.x + k, args.cols - k));
  }
  int64_t segment = 0;
  for (int64_t begin = 0; begin < args.cols; begin += args.segment_cols, ++segment) {
    const int64_t end =
        args.cols - begin < args.segment_cols ? args.cols : begin + args.segment_cols;
    if (args.q != nullptr) {
      float* scale = args.scales + segment * args.groups_per_segment;
      for (int64_t k = begin; k < end; k += kActivationGroup, ++scale)
        QuantizeA16(args, k, end - k < kActivationGroup ? end - k : kActivationGroup, scale);
    }
    if (args.a8 != nullptr) {
      float* scale = args.a8_scales + segment * args.a8_groups_per_segment;
      for (int64_t k = begin; k < end; k += kA8Group, ++scale)
        QuantizeA8(args, k, end - k < kA8Group ? end - k : kA8Group, scale);
    }
  }
}

ISA_END

const RegisterKernel<PrepareKernel> kRegistered(
    {.name = "cpu/prepare_avx512", .isa = Isa::kAvx512Vnni, .cost = 10, .run = &Run});

}  // namespace
}  // namespace bitshard
