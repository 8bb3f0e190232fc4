// Sums of ranks to f32 (sum.cuh) where no norm follows them.
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/sum.cuh"

namespace bitshard::cuda {
namespace {

constexpr int kThreads = 256;

// A block is 256 columns of one row.
__global__ void __launch_bounds__(kThreads) SumKernel(DeviceSum args) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t row = blockIdx.x;
  const int64_t col = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (row == 0 && col == 0) MarkProgress(args);
  const bool poisoned = IsPoisoned(args, row, col == 0);
  if (col < args.width) args.x[row * args.width + col] = ValueOf(args, row, col, poisoned);
}

}  // namespace

cudaError_t LaunchSum(const DeviceSum& args, cudaStream_t stream) {
  if (args.m == 0 || args.width == 0) return cudaSuccess;
  const int64_t blocks = (args.width + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(args.m), static_cast<unsigned>(blocks));
  return LAUNCH_KERNEL_EARLY(SumKernel, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace bitshard::cuda
