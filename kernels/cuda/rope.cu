// The angles of a step's tokens, once for all layers: RopeTable::CosSin (kernels/registry/rope.h)
// bit by bit, in double by its addition theorem, without a table. kv_append.cu rotates by them.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {
namespace {

constexpr int kThreads = 64;
constexpr int kFine = 256;  // positions that share the coarse angle

__device__ __forceinline__ float2 CosSinAt(int position, double inv_freq, double factor) {
  const CosSin a = CosAndSin(static_cast<double>(position / kFine * kFine) * inv_freq);
  const CosSin b = CosAndSin(static_cast<double>(position % kFine) * inv_freq);
  return make_float2(static_cast<float>((a.cos * b.cos - a.sin * b.sin) * factor),
                     static_cast<float>((a.sin * b.cos + a.cos * b.sin) * factor));
}

// A block is a token.
__global__ void __launch_bounds__(kThreads) AnglesKernel(AngleArgs args) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int position = args.position[blockIdx.x];
  if (position < 0) return;
  const int half = args.rotary_dim / 2;
  for (int i = threadIdx.x; i < half; i += kThreads) {
    args.cos_sin[int64_t{blockIdx.x} * half + i] =
        CosSinAt(position, args.inv_freq[i], args.attention_factor);
  }
}

}  // namespace

cudaError_t LaunchAngles(const AngleArgs& args, cudaStream_t stream) {
  if (args.m == 0 || args.rotary_dim == 0) return cudaSuccess;
  return LAUNCH_KERNEL_EARLY(AnglesKernel, dim3(static_cast<unsigned>(args.m)), dim3(kThreads), 0,
                             stream, args);
}

}  // namespace bitshard::cuda
