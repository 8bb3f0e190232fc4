// rms_norm, gated_act and exp on AVX2, f32 throughout; see elementwise_body.inc.
#include "kernels/cpu/vec16_avx2.h"
#include "kernels/registry/elementwise_kernel.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX2
#include "kernels/cpu/math_body.inc"
ISA_END

ISA_BEGIN_AVX2
#include "kernels/cpu/elementwise_body.inc"
ISA_END

const RegisterKernel<RmsNormKernel> kRmsNorm(
    {.name = "cpu/rms_norm_avx2", .isa = Isa::kAvx2, .cost = 50, .run = &RunRmsNorm});
const RegisterKernel<GatedActKernel> kGatedAct(
    {.name = "cpu/gated_act_avx2", .isa = Isa::kAvx2, .cost = 50, .run = &RunGatedAct});
const RegisterKernel<ExpKernel> kExp(
    {.name = "cpu/exp_avx2", .isa = Isa::kAvx2, .cost = 50, .run = &RunExp});

}  // namespace
}  // namespace bitshard
