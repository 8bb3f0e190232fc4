// Fixed-point sums of one row back to f32, by the definition in kernels/registry/reduction.h.
#include "kernels/registry/elementwise_kernel.h"
#include "kernels/registry/reduction.h"

namespace bitshard {
namespace {

void Run(const int64_t* sums, const float* bias, const float* residual, int64_t width, float* y) {
  for (int64_t i = 0; i < width; ++i) {
    float value = FixedToF32(sums[i]);
    if (bias != nullptr) value += bias[i];
    if (residual != nullptr) value = residual[i] + value;
    y[i] = value;
  }
}

const RegisterKernel<SumsKernel> kRegistered(
    {.name = "reference/sums", .isa = Isa::kScalar, .cost = 100, .run = &Run});

}  // namespace
}  // namespace bitshard
