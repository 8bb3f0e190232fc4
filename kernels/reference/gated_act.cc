// activation(gate) * up and exp(x - shift), element by element, by kernels/base/math.h.
#include "kernels/base/math.h"
#include "kernels/registry/elementwise_kernel.h"

namespace bitshard {
namespace {

void RunGatedAct(Activation activation, const float* gate, const float* up, int64_t width,
                 float* out) {
  for (int64_t i = 0; i < width; ++i) {
    const float g = activation == Activation::kSilu ? SiluF32(gate[i]) : GeluTanhF32(gate[i]);
    out[i] = g * up[i];
  }
}

void RunExp(const float* x, float shift, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = ExpF32(x[i] - shift);
}

const RegisterKernel<GatedActKernel> kGatedAct(
    {.name = "reference/gated_act", .isa = Isa::kScalar, .cost = 100, .run = &RunGatedAct});
const RegisterKernel<ExpKernel> kExp(
    {.name = "reference/exp", .isa = Isa::kScalar, .cost = 100, .run = &RunExp});

}  // namespace
}  // namespace bitshard
