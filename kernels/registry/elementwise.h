// The small ops, chosen by ISA at bind: rms_norm, gated_act, residual_add, exp. All rows are
// [width], row r at + r * stride. In place is allowed (out == an input with the same stride).
// Threads share out rows.
#pragma once

#include <cstdint>

#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "kernels/registry/kernel_choice.h"

namespace bitshard {

enum class Activation { kSilu, kGeluTanh };

// y = w * (x * (1 / sqrt(mean + epsilon))), mean = (16 lanes of fma(x, x), tree l+8, l+4, l+2, l+1)
// / width, in f32.
void RmsNorm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows,
             int64_t width, float* y, int64_t y_stride, Isa isa, ThreadPool& pool);

// out = activation(gate) * up, by SiluF32 / GeluTanhF32 of kernels/base/math.h.
void GatedAct(Activation activation, const float* gate, int64_t gate_stride, const float* up,
              int64_t up_stride, int64_t rows, int64_t width, float* out, int64_t out_stride,
              Isa isa, ThreadPool& pool);

// out = a + b.
void ResidualAdd(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t rows,
                 int64_t width, float* out, int64_t out_stride, ThreadPool& pool);

// out[i] = ExpF32(x[i] - shift): the vector form for softmax sums over a vocabulary.
void ExpShifted(const float* x, float shift, int64_t count, float* out, Isa isa);

// One row of these and of fixed-point sums (reduction.h), for ops that do several things to a row
// while it is in the cache. Chosen once, at bind.
struct RowKernels {
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int64_t width,
                   float* y) = nullptr;
  void (*gated_act)(Activation activation, const float* gate, const float* up, int64_t width,
                    float* out) = nullptr;
  // y = residual + (f32(sums) + bias); bias and residual may be null, y may be residual.
  void (*sums)(const int64_t* sums, const float* bias, const float* residual, int64_t width,
               float* y) = nullptr;
};
RowKernels ChooseRowKernels(Isa isa);

// Which implementation each of them uses: "cpu/rms_norm_avx2" ... for reports. op: "rms_norm",
// "gated_act", "sums", "exp".
KernelChoice ElementwiseChoice(const char* op, Isa isa);

}  // namespace bitshard
