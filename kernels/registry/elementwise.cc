#include "kernels/registry/elementwise.h"

#include <cstring>
#include <string>

#include "kernels/base/check.h"
#include "kernels/registry/elementwise_kernel.h"

namespace bitshard {
namespace {

template <typename Kernel>
const Kernel& Choose(Isa isa) {
  const Kernel* kernel = KernelRegistry<Kernel>::Get().Fastest(isa);
  CHECK(kernel != nullptr) << "no kernels are linked in";
  return *kernel;
}

template <typename Kernel>
KernelChoice ChoiceOf(Isa isa) {
  const Kernel& chosen = Choose<Kernel>(isa);
  KernelChoice choice;
  choice.kernel = chosen.name;
  choice.isa = chosen.isa;
  for (const Kernel* kernel : KernelRegistry<Kernel>::Get().all()) {
    if (kernel == &chosen) break;
    if (!HasIsa(kernel->isa)) continue;
    choice.refused.push_back(
        {kernel->name, "this rank is held to " + std::string(IsaName(isa)) + " by --isa"});
  }
  return choice;
}

}  // namespace

void RmsNorm(const float* x, int64_t x_stride, const float* weight, float epsilon, int64_t rows,
             int64_t width, float* y, int64_t y_stride, Isa isa, ThreadPool& pool) {
  const RmsNormKernel& kernel = Choose<RmsNormKernel>(isa);
  pool.ParallelFor(rows, [&](int64_t r, int) {
    kernel.run(x + r * x_stride, weight, epsilon, width, y + r * y_stride);
  });
}

void GatedAct(Activation activation, const float* gate, int64_t gate_stride, const float* up,
              int64_t up_stride, int64_t rows, int64_t width, float* out, int64_t out_stride,
              Isa isa, ThreadPool& pool) {
  const GatedActKernel& kernel = Choose<GatedActKernel>(isa);
  pool.ParallelFor(rows, [&](int64_t r, int) {
    kernel.run(activation, gate + r * gate_stride, up + r * up_stride, width, out + r * out_stride);
  });
}

void ResidualAdd(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t rows,
                 int64_t width, float* out, int64_t out_stride, ThreadPool& pool) {
  pool.ParallelFor(rows, [&](int64_t r, int) {
    for (int64_t i = 0; i < width; ++i)
      out[r * out_stride + i] = a[r * a_stride + i] + b[r * b_stride + i];
  });
}

void ExpShifted(const float* x, float shift, int64_t count, float* out, Isa isa) {
  Choose<ExpKernel>(isa).run(x, shift, count, out);
}

RowKernels ChooseRowKernels(Isa isa) {
  return {.rms_norm = Choose<RmsNormKernel>(isa).run,
          .gated_act = Choose<GatedActKernel>(isa).run,
          .sums = Choose<SumsKernel>(isa).run};
}

KernelChoice ElementwiseChoice(const char* op, Isa isa) {
  if (std::strcmp(op, "rms_norm") == 0) return ChoiceOf<RmsNormKernel>(isa);
  if (std::strcmp(op, "gated_act") == 0) return ChoiceOf<GatedActKernel>(isa);
  if (std::strcmp(op, "sums") == 0) return ChoiceOf<SumsKernel>(isa);
  CHECK(std::strcmp(op, "exp") == 0) << op;
  return ChoiceOf<ExpKernel>(isa);
}

}  // namespace bitshard
