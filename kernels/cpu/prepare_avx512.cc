// The a16 form of one activation group on AVX-512; same operations as kernels/reference/prepare.cc.
#include "kernels/cpu/isa_region.h"
#include "kernels/registry/prepare_kernel.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX512VNNI

void Run(const PrepareArgs& args) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i amax = _mm512_setzero_si512();
  for (int run = 0; run < args.runs; ++run) {
    amax =
        _mm512_max_epi32(amax, _mm512_and_si512(_mm512_loadu_si512(args.x + 16 * run), magnitude));
  }
  const int32_t amax_bits = _mm512_reduce_max_epi32(amax);
  const bool finite = amax_bits < 0x7f800000;
  float scale = __builtin_nanf("");
  if (finite) {
    scale = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(amax_bits))) / kActivationSteps;
    if (scale < kSmallestActivationScale) scale = 0;
  }
  *args.scale = scale;
  const __m512 divisor = _mm512_set1_ps(scale);
  const bool zero = !finite || scale == 0;
  for (int run = 0; run < args.runs; ++run) {
    __m512i q = _mm512_setzero_si512();
    if (!zero) q = _mm512_cvtps_epi32(_mm512_div_ps(_mm512_loadu_ps(args.x + 16 * run), divisor));
    const __m512i hi = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
    const __m512i lo = _mm512_sub_epi32(q, _mm512_slli_epi32(hi, 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(args.q + 16 * run), _mm512_cvtepi32_epi16(q));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(args.hi + 16 * run), _mm512_cvtepi32_epi8(hi));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(args.lo + 16 * run), _mm512_cvtepi32_epi8(lo));
    args.run_sums[run] = _mm512_reduce_add_epi32(q);
  }
}

ISA_END

const RegisterKernel<PrepareKernel> kRegistered(
    {.name = "cpu/prepare_avx512", .isa = Isa::kAvx512Vnni, .cost = 10, .run = &Run});

}  // namespace
}  // namespace bitshard
