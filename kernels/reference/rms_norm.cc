// RMS norm of one row by the definition in kernels/registry/elementwise.h. Accumulates in f32.
#include <cmath>

#include "kernels/registry/elementwise_kernel.h"

namespace bitshard {
namespace {

void Run(const float* x, const float* weight, float epsilon, int64_t width, float* y) {
  float lanes[16] = {};
  for (int64_t i = 0; i < width; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  for (int half = 8; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] = lanes[l] + lanes[l + half];
  }
  const float inverse = 1.0f / std::sqrt(lanes[0] / static_cast<float>(width) + epsilon);
  for (int64_t i = 0; i < width; ++i) y[i] = weight[i] * (x[i] * inverse);
}

const RegisterKernel<RmsNormKernel> kRegistered(
    {.name = "reference/rms_norm", .isa = Isa::kScalar, .cost = 100, .run = &Run});

}  // namespace
}  // namespace bitshard
