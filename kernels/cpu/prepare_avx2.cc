// The a16 form of one activation group on AVX2; same operations as kernels/reference/prepare.cc.
#include "kernels/cpu/isa_region.h"
#include "kernels/registry/prepare_kernel.h"

namespace bitshard {
namespace {

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

void Run(const PrepareArgs& args) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i amax = _mm256_setzero_si256();
  for (int i = 0; i < 16 * args.runs; i += 8) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(args.x + i));
    amax = _mm256_max_epi32(amax, _mm256_and_si256(v, magnitude));
  }
  const int32_t amax_bits = MaxLane32(amax);
  const bool finite = amax_bits < 0x7f800000;
  float scale = __builtin_nanf("");
  if (finite) {
    scale = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(amax_bits))) / kActivationSteps;
    if (scale < kSmallestActivationScale) scale = 0;
  }
  *args.scale = scale;
  const __m256 divisor = _mm256_set1_ps(scale);
  const bool zero = !finite || scale == 0;
  for (int run = 0; run < args.runs; ++run) {
    __m256i q[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    __m256i hi[2], lo[2];
    for (int half = 0; half < 2; ++half) {
      if (!zero)
        q[half] = _mm256_cvtps_epi32(
            _mm256_div_ps(_mm256_loadu_ps(args.x + 16 * run + 8 * half), divisor));
      hi[half] = _mm256_srai_epi32(_mm256_add_epi32(q[half], _mm256_set1_epi32(128)), 8);
      lo[half] = _mm256_sub_epi32(q[half], _mm256_slli_epi32(hi[half], 8));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(args.q + 16 * run), Narrow(q[0], q[1]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(args.hi + 16 * run),
                     NarrowToBytes(Narrow(hi[0], hi[1])));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(args.lo + 16 * run),
                     NarrowToBytes(Narrow(lo[0], lo[1])));
    args.run_sums[run] = SumLanes32(_mm256_add_epi32(q[0], q[1]));
  }
}

ISA_END

const RegisterKernel<PrepareKernel> kRegistered(
    {.name = "cpu/prepare_avx2", .isa = Isa::kAvx2, .cost = 50, .run = &Run});

}  // namespace
}  // namespace bitshard
