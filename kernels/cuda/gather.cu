// Embedding rows out of packed matrices: the exact values, one thread an element.
#include "kernels/cuda/dequant_plain.cuh"
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    GatherKernel(const __grid_constant__ GatherLaunch launch) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t col = int64_t{blockIdx.x} * kThreads + threadIdx.x, i = blockIdx.y;
  if (col >= launch.w.cols) return;
  const int64_t row = launch.tokens[i] - launch.vocab_begin;
  int64_t bits = 0;
  if (row >= 0 && row < launch.w.rows) bits = __float_as_uint(ValueOf(launch.w, row, col));
  launch.out[i * launch.w.cols + col] = bits;
}

}  // namespace

cudaError_t LaunchGather(const GatherLaunch& launch, cudaStream_t stream) {
  if (launch.m <= 0 || launch.w.cols <= 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((launch.w.cols + kThreads - 1) / kThreads);
  return LAUNCH_KERNEL_EARLY(GatherKernel, dim3(blocks, static_cast<unsigned>(launch.m)),
                             dim3(kThreads), 0, stream, launch);
}

}  // namespace bitshard::cuda
