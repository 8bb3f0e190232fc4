// rms_norm, gated_act, exp and sums on AVX-512, f32 throughout; see elementwise_body.inc.
#include "kernels/cpu/vec16_avx512.h"
#include "kernels/registry/elementwise_kernel.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX512VNNI
#include "kernels/cpu/math_body.inc"
ISA_END

ISA_BEGIN_AVX512VNNI
#include "kernels/cpu/elementwise_body.inc"

ISA_INLINE __m256 SumsToFloats(__m512i sums) {
  return _mm512_cvtpd_ps(_mm512_mul_pd(_mm512_cvtepi64_pd(sums), _mm512_set1_pd(0x1p-32)));
}

void RunSums(const int64_t* sums, const float* bias, const float* residual, int64_t width,
             float* y) {
  for (int64_t i = 0; i < width; i += 8) {
    const __mmask8 there = width - i >= 8 ? static_cast<__mmask8>(0xff)
                                          : static_cast<__mmask8>((1u << (width - i)) - 1);
    __m256 value = SumsToFloats(_mm512_maskz_loadu_epi64(there, sums + i));
    if (bias != nullptr) value = _mm256_add_ps(value, _mm256_maskz_loadu_ps(there, bias + i));
    if (residual != nullptr)
      value = _mm256_add_ps(_mm256_maskz_loadu_ps(there, residual + i), value);
    _mm256_mask_storeu_ps(y + i, there, value);
  }
}
ISA_END

const RegisterKernel<RmsNormKernel> kRmsNorm(
    {.name = "cpu/rms_norm_avx512", .isa = Isa::kAvx512Vnni, .cost = 10, .run = &RunRmsNorm});
const RegisterKernel<GatedActKernel> kGatedAct(
    {.name = "cpu/gated_act_avx512", .isa = Isa::kAvx512Vnni, .cost = 10, .run = &RunGatedAct});
const RegisterKernel<SumsKernel> kSums(
    {.name = "cpu/sums_avx512", .isa = Isa::kAvx512Vnni, .cost = 10, .run = &RunSums});
const RegisterKernel<ExpKernel> kExp(
    {.name = "cpu/exp_avx512", .isa = Isa::kAvx512Vnni, .cost = 10, .run = &RunExp});

}  // namespace
}  // namespace bitshard
