// See probes.h.
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/mma.cuh"
#include "tests/gpu/probes.h"

namespace bitshard::cuda {
namespace {

// Two bf16 in +-[1, 2) with 3 digits behind the point: products are multiples of 1/64 below 4, so
// that sums of 16 of them over 8 chains and 512 rounds stay exact in f32.
__device__ uint32_t TwoBf16(uint32_t seed) {
  uint32_t x = seed * 2654435761u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return (x & 0x80708070u) | 0x3f803f80u;
}

__global__ __launch_bounds__(kMmaThreads) void MmaRateKernel(int64_t rounds, float* out) {
  const uint32_t thread = blockIdx.x * uint32_t{kMmaThreads} + threadIdx.x;
  uint32_t a[4], b[2];
  for (uint32_t i = 0; i < 4; ++i) a[i] = TwoBf16(8 * thread + i);
  for (uint32_t i = 0; i < 2; ++i) b[i] = TwoBf16(8 * thread + 4 + i);
  float d[kMmaChains][4] = {};
  for (int64_t i = 0; i < rounds; ++i) {
#pragma unroll
    for (int chain = 0; chain < kMmaChains; ++chain) MmaBf16(d[chain], a, b);
  }
  float sum = 0;
#pragma unroll
  for (int chain = 0; chain < kMmaChains; ++chain) sum += d[chain][chain % 4];
  out[thread] = sum;
}

constexpr uint64_t kFactor = 6364136223846793005u, kSummand = 1442695040888963407u;

__global__ void ChainKernel(uint64_t* word, int64_t steps) {
  uint64_t value = *word;
  for (int64_t i = 0; i < steps; ++i) value = value * kFactor + kSummand;
  *word = value;
}

}  // namespace
}  // namespace bitshard::cuda

namespace bitshard {

int LaunchMmaRate(int blocks, int64_t rounds, float* out, void* stream) {
  return static_cast<int>(LAUNCH_KERNEL(cuda::MmaRateKernel, dim3(static_cast<unsigned>(blocks)),
                                        dim3(kMmaThreads), 0, static_cast<cudaStream_t>(stream),
                                        rounds, out));
}

int LaunchChain(uint64_t* word, int64_t steps, void* stream) {
  return static_cast<int>(LAUNCH_KERNEL(cuda::ChainKernel, dim3(1), dim3(1), 0,
                                        static_cast<cudaStream_t>(stream), word, steps));
}

uint64_t ChainResult(uint64_t word, int64_t steps) {
  // Of one step, doubled again and again: x -> factor * x + summand.
  uint64_t factor = cuda::kFactor, summand = cuda::kSummand;
  for (int64_t rest = steps; rest != 0; rest /= 2) {
    if (rest % 2 != 0) word = word * factor + summand;
    summand = summand * factor + summand;
    factor *= factor;
  }
  return word;
}

}  // namespace bitshard
