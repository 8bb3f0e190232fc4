// The int64 in which ranks add up back to f32: kernels/registry/reduction.h bit by bit, with bias,
// residual and poison.
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/rows.h"

namespace bitshard::cuda {
namespace {

constexpr int kThreads = 256;

// A block is 256 columns of one row.
__global__ void __launch_bounds__(kThreads) SumKernel(SumArgs args) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t row = blockIdx.x;
  const int64_t col = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const bool poisoned = args.poison != nullptr && args.poison[row] != 0;
  if (poisoned && col == 0) args.poisoned[row] = 1;
  if (col >= args.width) return;
  const int64_t at = row * args.width + col;
  const int64_t in = args.in[at];
  float value = args.raw_bits ? __uint_as_float(static_cast<uint32_t>(in))
                              : static_cast<float>(static_cast<double>(in) * (1.0 / 4294967296.0));
  if (args.bias != nullptr) value += args.bias[col];
  if (args.residual != nullptr) value = args.residual[at] + value;
  args.x[at] = poisoned ? __uint_as_float(0x7fc00000u) : value;
}

}  // namespace

cudaError_t LaunchSum(const SumArgs& args, cudaStream_t stream) {
  if (args.m == 0 || args.width == 0) return cudaSuccess;
  const int64_t blocks = (args.width + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(args.m), static_cast<unsigned>(blocks));
  return LAUNCH_KERNEL_EARLY(SumKernel, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace bitshard::cuda
