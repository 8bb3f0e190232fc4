// Picks rows of f32 by an index that lies on the device.
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/rows.h"

namespace bitshard::cuda {
namespace {

constexpr int kThreads = 256;

// A block is 256 columns of one row.
__global__ void __launch_bounds__(kThreads) GatherRowsKernel(GatherRowsArgs args) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t col = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  if (col >= args.width) return;
  const int64_t from = args.index[blockIdx.x];
  args.out[int64_t{blockIdx.x} * args.width + col] = args.x[from * args.width + col];
}

}  // namespace

cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream) {
  if (args.count == 0 || args.width == 0) return cudaSuccess;
  const int64_t blocks = (args.width + kThreads - 1) / kThreads;
  const dim3 grid(static_cast<unsigned>(args.count), static_cast<unsigned>(blocks));
  return LAUNCH_KERNEL_EARLY(GatherRowsKernel, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace bitshard::cuda
