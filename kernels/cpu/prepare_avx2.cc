// The forms of one row of activations on AVX2; same operations as kernels/reference/prepare.cc.
#include "kernels/cpu/isa_region.h"
#include "kernels/registry/activations.h"
#include "kernels/registry/prepare_kernel.h"

namespace bitshard {
namespace {

constexpr int kRun = 16;

ISA_BEGIN_AVX2

ISA_INLINE int32_t MaxLane32(__m256i v) {
  __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
  m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
  return _mm_cvtsi128_si32(m);
}

ISA_INLINE int32_t SumLanes32(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  return _mm_cvtsi128_si32(s);
}

// 16 values of 32 bits, all within 16 bits, in order.
ISA_INLINE __m256i Narrow(__m256i a, __m256i b) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
}
ISA_INLINE __m128i NarrowToBytes(__m256i v) {
  return _mm_packs_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

// Columns [0, 16) of a run in lane order; those from `count` on are 0.
ISA_INLINE void LoadRun(const float* x, int64_t count, __m256 v[2]) {
  float padded[kRun];
  if (count < kRun) {
    for (int i = 0; i < kRun; ++i) padded[i] = i < count ? x[i] : 0.0f;
    x = padded;
  }
  const __m256 first = _mm256_loadu_ps(x), second = _mm256_loadu_ps(x + 8);
  const __m256 low = _mm256_unpacklo_ps(first, second), high = _mm256_unpackhi_ps(first, second);
  v[0] = _mm256_permute2f128_ps(low, high, 0x20);
  v[1] = _mm256_permute2f128_ps(low, high, 0x31);
}

// Of a group; false: all of its q are 0.
ISA_INLINE bool ScaleOf(const float* x, int64_t count, float steps, float* scale) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i amax = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += kRun) {
    __m256 v[2];
    LoadRun(x + i, count - i, v);
    for (int half = 0; half < 2; ++half) {
      amax = _mm256_max_epi32(amax, _mm256_and_si256(_mm256_castps_si256(v[half]), magnitude));
    }
  }
  const int32_t amax_bits = MaxLane32(amax);
  if (amax_bits >= 0x7f800000) {
    *scale = __builtin_nanf("");
    return false;
  }
  const float s = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(amax_bits))) / steps;
  const bool zero = s < kSmallestActivationScale;
  *scale = zero ? 0.0f : s;
  return !zero;
}

ISA_INLINE void Quotients(const float* x, int64_t count, bool some, __m256 divisor, __m256i q[2]) {
  __m256 v[2];
  LoadRun(x, count, v);
  for (int half = 0; half < 2; ++half) {
    q[half] = some ? _mm256_cvtps_epi32(_mm256_div_ps(v[half], divisor)) : _mm256_setzero_si256();
  }
}

void QuantizeA16(const PrepareArgs& args, int64_t k, int64_t count, float* scale) {
  const bool some = ScaleOf(args.x + k, count, kActivationSteps, scale);
  const __m256 divisor = _mm256_set1_ps(*scale);
  for (int64_t i = 0; i < count; i += kRun) {
    const int64_t at = k + i;
    __m256i q[2], hi[2], lo[2];
    Quotients(args.x + at, count - i, some, divisor, q);
    for (int half = 0; half < 2; ++half) {
      hi[half] = _mm256_srai_epi32(_mm256_add_epi32(q[half], _mm256_set1_epi32(128)), 8);
      lo[half] = _mm256_sub_epi32(q[half], _mm256_slli_epi32(hi[half], 8));
    }
    const __m256i narrow = Narrow(q[0], q[1]);
    const __m256i pairs = _mm256_madd_epi16(narrow, _mm256_shuffle_epi32(narrow, 0xb1));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(args.q + at), narrow);
    args.pair_sums[at / kRun] =
        SumLanes32(_mm256_and_si256(pairs, _mm256_set1_epi64x(0xffffffff)));  // each is there twice
    _mm_storeu_si128(reinterpret_cast<__m128i*>(args.hi + at), NarrowToBytes(Narrow(hi[0], hi[1])));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(args.lo + at), NarrowToBytes(Narrow(lo[0], lo[1])));
    args.run_sums[at / kRun] = SumLanes32(_mm256_add_epi32(q[0], q[1]));
  }
}

void QuantizeA8(const PrepareArgs& args, int64_t k, int64_t count, float* scale) {
  const bool some = ScaleOf(args.x + k, count, kA8Steps, scale);
  const __m256 divisor = _mm256_set1_ps(*scale);
  for (int64_t i = 0; i < count; i += kRun) {
    const int64_t at = k + i;
    __m256i q[2];
    Quotients(args.x + at, count - i, some, divisor, q);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(args.a8 + at), NarrowToBytes(Narrow(q[0], q[1])));
    args.a8_run_sums[at / kRun] = SumLanes32(_mm256_add_epi32(q[0], q[1]));
  }
}

void Run(const PrepareArgs& args) {
  if (args.f32 != nullptr) {
    for (int64_t k = 0; k < args.cols; k += kRun) {
      __m256 v[2];
      LoadRun(args.x + k, args.cols - k, v);
      _mm256_storeu_ps(args.f32 + k, v[0]);
      _mm256_storeu_ps(args.f32 + k + 8, v[1]);
    }
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
    {.name = "cpu/prepare_avx2", .isa = Isa::kAvx2, .cost = 50, .run = &Run});

}  // namespace
}  // namespace bitshard
