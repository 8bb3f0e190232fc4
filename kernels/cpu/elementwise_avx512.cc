// rms_norm, gated_act and exp on AVX-512, f32 throughout; see elementwise_body.inc.
#include "kernels/cpu/vec16_avx512.h"
#include "kernels/registry/elementwise_kernel.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX512VNNI
#include "kernels/cpu/math_body.inc"
ISA_END

ISA_BEGIN_AVX512VNNI
#include "kernels/cpu/elementwise_body.inc"
ISA_END

const RegisterKernel<RmsNormKernel> kRmsNorm(
    {.name = "cpu/rms_norm_avx512", .isa = Isa::kAvx512Vnni, .cost = 10, .run = &RunRmsNorm});
const RegisterKernel<GatedActKernel> kGatedAct(
    {.name = "cpu/gated_act_avx512", .isa = Isa::kAvx512Vnni, .cost = 10, .run = &RunGatedAct});
const RegisterKernel<ExpKernel> kExp(
    {.name = "cpu/exp_avx512", .isa = Isa::kAvx512Vnni, .cost = 10, .run = &RunExp});

}  // namespace
}  // namespace bitshard
