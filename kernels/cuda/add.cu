// x = a + b in f32.
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/rows.h"

namespace bitshard::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) AddKernel(AddArgs args) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < args.count) args.x[i] = args.a[i] + args.b[i];
}

}  // namespace

cudaError_t LaunchAdd(const AddArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  const unsigned blocks = static_cast<unsigned>((args.count + kThreads - 1) / kThreads);
  return LAUNCH_KERNEL_EARLY(AddKernel, dim3(blocks), dim3(kThreads), 0, stream, args);
}

}  // namespace bitshard::cuda
