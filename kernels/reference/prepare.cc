// The forms of one row of activations, by their definition (kernels/registry/activations.h).
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/registry/activations.h"
#include "kernels/registry/prepare_kernel.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {
namespace {

// The scale of a group with these magnitudes; `zero`: its q are all 0.
float ScaleOf(const float* x, int64_t count, float steps, bool* zero) {
  uint32_t amax_bits = 0;  // as integers, so that NaN is the largest and the order does not matter
  for (int64_t i = 0; i < count; ++i)
    amax_bits = std::max(amax_bits, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  if (amax_bits >= 0x7f800000u) {
    *zero = true;
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = std::bit_cast<float>(amax_bits) / steps;
  *zero = scale < kSmallestActivationScale;
  return *zero ? 0.0f : scale;
}

// store(i, q) for the values of a group, zeros up to a whole run, and the sums of the runs.
template <typename Store>
void Quantize(const float* x, int64_t count, float steps, float* scale, int32_t* run_sums,
              const Store& store) {
  bool zero = false;
  *scale = ScaleOf(x, count, steps, &zero);
  for (int64_t run = 0; run * kLaneCols < count; ++run) {
    int32_t sum = 0;
    for (int i = 0; i < kLaneCols; ++i) {
      const int64_t k = run * kLaneCols + i;
      const int q = zero || k >= count ? 0 : static_cast<int>(std::nearbyintf(x[k] / *scale));
      store(run * kLaneCols + LaneOfColumn(i), q);
      sum += q;
    }
    run_sums[run] = sum;
  }
}

void QuantizeA16(const PrepareArgs& args, int64_t k, int64_t count, float* scale) {
  Quantize(args.x + k, count, kActivationSteps, scale, args.run_sums + k / kLaneCols,
           [&](int64_t i, int q) {
             const int hi = (q + 128) >> 8;
             args.q[k + i] = static_cast<int16_t>(q);
             args.hi[k + i] = static_cast<int8_t>(hi);
             args.lo[k + i] = static_cast<int8_t>(q - 256 * hi);
           });
  for (int64_t run = k; run < k + count; run += kLaneCols) {
    uint32_t sum = 0;
    for (int i = 0; i < kLaneCols; ++i)
      if (i % 4 < 2) sum += static_cast<uint32_t>(args.q[run + i] * args.q[run + i + 2]);
    args.pair_sums[run / kLaneCols] = static_cast<int32_t>(sum);
  }
}

void QuantizeA8(const PrepareArgs& args, int64_t k, int64_t count, float* scale) {
  Quantize(args.x + k, count, kA8Steps, scale, args.a8_run_sums + k / kLaneCols,
           [&](int64_t i, int q) { args.a8[k + i] = static_cast<int8_t>(q); });
}

void Run(const PrepareArgs& args) {
  if (args.f32 != nullptr) {
    for (int64_t k = 0; k < args.cols; k += kLaneCols) {
      for (int i = 0; i < kLaneCols; ++i)
        args.f32[k + LaneOfColumn(i)] = k + i < args.cols ? args.x[k + i] : 0.0f;
    }
  }
  int64_t segment = 0;
  for (int64_t begin = 0; begin < args.cols; begin += args.segment_cols, ++segment) {
    const int64_t end = std::min(begin + args.segment_cols, args.cols);
    if (args.q != nullptr) {
      float* scale = args.scales + segment * args.groups_per_segment;
      for (int64_t k = begin; k < end; k += kActivationGroup, ++scale)
        QuantizeA16(args, k, std::min<int64_t>(kActivationGroup, end - k), scale);
    }
    if (args.a8 != nullptr) {
      float* scale = args.a8_scales + segment * args.a8_groups_per_segment;
      for (int64_t k = begin; k < end; k += kA8Group, ++scale)
        QuantizeA8(args, k, std::min<int64_t>(kA8Group, end - k), scale);
    }
  }
}

const RegisterKernel<PrepareKernel> kRegistered(
    {.name = "reference/prepare", .isa = Isa::kScalar, .cost = 100, .run = &Run});

}  // namespace
}  // namespace bitshard
