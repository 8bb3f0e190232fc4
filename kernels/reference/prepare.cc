// The a16 form of one activation group, by its definition (kernels/registry/activations.h).
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/registry/prepare_kernel.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {
namespace {

void Run(const PrepareArgs& args) {
  const int count = args.runs * kLaneCols;
  uint32_t amax_bits = 0;  // as integers, so that NaN is the largest and the order does not matter
  for (int i = 0; i < count; ++i)
    amax_bits = std::max(amax_bits, std::bit_cast<uint32_t>(args.x[i]) & 0x7fffffffu);
  const bool finite = amax_bits < 0x7f800000u;
  float scale = finite ? std::bit_cast<float>(amax_bits) / kActivationSteps
                       : std::numeric_limits<float>::quiet_NaN();
  const bool zero = !finite || scale < kSmallestActivationScale;
  if (finite && zero) scale = 0;
  for (int run = 0; run < args.runs; ++run) {
    int32_t sum = 0;
    for (int i = run * kLaneCols; i < (run + 1) * kLaneCols; ++i) {
      const int q = zero ? 0 : static_cast<int>(std::nearbyintf(args.x[i] / scale));
      const int hi = (q + 128) >> 8;
      args.q[i] = static_cast<int16_t>(q);
      args.hi[i] = static_cast<int8_t>(hi);
      args.lo[i] = static_cast<int8_t>(q - 256 * hi);
      sum += q;
    }
    args.run_sums[run] = sum;
  }
  *args.scale = scale;
}

const RegisterKernel<PrepareKernel> kRegistered(
    {.name = "reference/prepare", .isa = Isa::kScalar, .cost = 100, .run = &Run});

}  // namespace
}  // namespace bitshard
