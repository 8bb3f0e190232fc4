// rms_norm, gated_act, exp and sums on AVX2, f32 throughout; see elementwise_body.inc.
#include "kernels/cpu/vec16_avx2.h"
#include "kernels/registry/elementwise_kernel.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX2
#include "kernels/cpu/math_body.inc"
ISA_END

ISA_BEGIN_AVX2
#include "kernels/cpu/elementwise_body.inc"

// int64 to double, rounded once: the high half is exact as 2^84 + 2^63 + high 2^32 and the low one
// as 2^52 + low; taking the constants off the high one is exact too, adding the low one rounds.
ISA_INLINE __m256d ToDoubles(__m256i v) {
  const __m256i high_one = _mm256_set1_epi64x(0x4530000080000000);
  const __m256i low_one = _mm256_set1_epi64x(0x4330000000000000);
  const __m256d both = _mm256_castsi256_pd(_mm256_set1_epi64x(0x4530000080100000));
  const __m256i high = _mm256_xor_si256(_mm256_srli_epi64(v, 32), high_one);
  const __m256i low = _mm256_blend_epi32(low_one, v, 0b01010101);
  return _mm256_add_pd(_mm256_sub_pd(_mm256_castsi256_pd(high), both), _mm256_castsi256_pd(low));
}
ISA_INLINE __m128 SumsToFloats(__m256i sums) {
  return _mm256_cvtpd_ps(_mm256_mul_pd(ToDoubles(sums), _mm256_set1_pd(0x1p-32)));
}

void RunSums(const int64_t* sums, const float* bias, const float* residual, int64_t width,
             float* y) {
  const int64_t whole = width / 4 * 4;
  for (int64_t i = 0; i < whole; i += 4) {
    __m128 value = SumsToFloats(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums + i)));
    if (bias != nullptr) value = _mm_add_ps(value, _mm_loadu_ps(bias + i));
    if (residual != nullptr) value = _mm_add_ps(_mm_loadu_ps(residual + i), value);
    _mm_storeu_ps(y + i, value);
  }
  for (int64_t i = whole; i < width; ++i) {
    float value = _mm_cvtss_f32(SumsToFloats(_mm256_set1_epi64x(sums[i])));
    if (bias != nullptr) value = value + bias[i];
    if (residual != nullptr) value = residual[i] + value;
    y[i] = value;
  }
}
ISA_END

const RegisterKernel<RmsNormKernel> kRmsNorm(
    {.name = "cpu/rms_norm_avx2", .isa = Isa::kAvx2, .cost = 50, .run = &RunRmsNorm});
const RegisterKernel<GatedActKernel> kGatedAct(
    {.name = "cpu/gated_act_avx2", .isa = Isa::kAvx2, .cost = 50, .run = &RunGatedAct});
const RegisterKernel<SumsKernel> kSums(
    {.name = "cpu/sums_avx2", .isa = Isa::kAvx2, .cost = 50, .run = &RunSums});
const RegisterKernel<ExpKernel> kExp(
    {.name = "cpu/exp_avx2", .isa = Isa::kAvx2, .cost = 50, .run = &RunExp});

}  // namespace
}  // namespace bitshard
