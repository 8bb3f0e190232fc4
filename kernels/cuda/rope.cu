// Rotates heads in place: RopeTable::Apply (kernels/registry/rope.h) bit by bit, angles in double
// by its addition theorem, without a table.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeadsOfBlock = 8;
constexpr int kFine = 256;  // positions that share the coarse angle

__device__ __forceinline__ float2 CosSinAt(int position, double inv_freq, double factor) {
  const CosSin a = CosAndSin(static_cast<double>(position / kFine * kFine) * inv_freq);
  const CosSin b = CosAndSin(static_cast<double>(position % kFine) * inv_freq);
  return make_float2(static_cast<float>((a.cos * b.cos - a.sin * b.sin) * factor),
                     static_cast<float>((a.sin * b.cos + a.cos * b.sin) * factor));
}

// A block is some heads of one token.
__global__ void __launch_bounds__(kThreads) RotateKernel(RotateArgs args) {
  SHARED_ARRAY(float2, cos_sin, [kMaxRotaryDim / 2]);
  GridDependencyLaunch();
  GridDependencyWait();
  const int position = args.position[blockIdx.x];
  if (position < 0) return;
  const int half = args.rotary_dim / 2;
  for (int i = threadIdx.x; i < half; i += kThreads)
    cos_sin[i] = CosSinAt(position, args.inv_freq[i], args.attention_factor);
  __syncthreads();
  const int first_head = blockIdx.y * kHeadsOfBlock;
  const int heads = min(kHeadsOfBlock, args.heads - first_head);
  float* const x = args.x + int64_t{blockIdx.x} * args.stride;
  for (int at = threadIdx.x; at < heads * half; at += kThreads) {
    const int i = at % half;
    float* const head = x + static_cast<int64_t>(first_head + at / half) * args.head_dim;
    float* const low = head + (args.interleaved ? 2 * i : i);
    float* const high = low + (args.interleaved ? 1 : half);
    const float a = *low, b = *high;
    const float2 angle = cos_sin[i];
    *low = a * angle.x - b * angle.y;
    *high = b * angle.x + a * angle.y;
  }
}

}  // namespace

cudaError_t LaunchRotate(const RotateArgs& args, cudaStream_t stream) {
  if (args.m == 0 || args.heads == 0 || args.rotary_dim == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.m),
                  static_cast<unsigned>((args.heads + kHeadsOfBlock - 1) / kHeadsOfBlock));
  return LAUNCH_KERNEL_EARLY(RotateKernel, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace bitshard::cuda
