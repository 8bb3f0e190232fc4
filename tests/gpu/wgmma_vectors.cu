// The second kernel behind ptx_vectors.h: a warpgroup a block, products of random numbers in
// [1, 2), added to a start and then overwritten.
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/wgmma.cuh"
#include "tests/gpu/ptx_vectors.h"

namespace bitshard::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kAlignment = 1024;
constexpr int kSteps = kWgmmaTileK / 16;
constexpr int kWordsOfColumn = kWgmmaTileK / 2;
constexpr int kWordsOfThread = 4 * kWgmmaBlocks;
static_assert(kThreads == kWgmmaColumns);
static_assert(kWgmmaVectorInputWords == kThreads * (4 * kSteps + kWordsOfColumn));
static_assert(kWgmmaVectorOutputWords == 2 * kThreads * kWordsOfThread);

__device__ uint32_t UnitHalves(uint32_t x) { return (x & 0x83ff83ffu) | 0x3c003c00u; }

__global__ void WgmmaVectors(const uint32_t* in, uint32_t* out) {
  DYNAMIC_SHARED(uint8_t, shared);
  uint8_t* const b =
      shared + (kAlignment - reinterpret_cast<uintptr_t>(shared) % kAlignment) % kAlignment;
  const int thread = static_cast<int>(threadIdx.x);
  const uint32_t* const mine = in + int64_t{kWgmmaVectorInputWords} * blockIdx.x +
                               int64_t{4 * kSteps + kWordsOfColumn} * thread;
  uint32_t a[kSteps][4];
#pragma unroll
  for (int i = 0; i < 4 * kSteps; ++i) a[i / 4][i % 4] = UnitHalves(mine[i]);
  // Each thread has a column of b.
  const uint32_t* const column = mine + 4 * kSteps;
  for (int chunk = 0; chunk < kWordsOfColumn / 4; ++chunk) {
    *reinterpret_cast<uint4*>(b + WgmmaPlace(thread, chunk)) =
        make_uint4(UnitHalves(column[4 * chunk]), UnitHalves(column[4 * chunk + 1]),
                   UnitHalves(column[4 * chunk + 2]), UnitHalves(column[4 * chunk + 3]));
  }
  PublishShared();
  __syncthreads();

  float d[kWgmmaBlocks][4];
#pragma unroll
  for (int i = 0; i < kWordsOfThread; ++i) d[i / 4][i % 4] = static_cast<float>(i + thread);
  uint32_t* words =
      out + int64_t{kWgmmaVectorOutputWords} * blockIdx.x + int64_t{2 * kWordsOfThread} * thread;
  WgmmaF16 products;
  products.Begin();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) products.Multiply(d, a[k], b, k, false);
  products.End();
  products.Wait(d);
#pragma unroll
  for (int i = 0; i < kWordsOfThread; ++i) words[i] = __float_as_uint(d[i / 4][i % 4]);
  products.Begin();
  products.Multiply(d, a[0], b, 2, true);
  products.Multiply(d, a[1], b, 3, false);
  products.End();
  products.Wait(d);
#pragma unroll
  for (int i = 0; i < kWordsOfThread; ++i)
    words[kWordsOfThread + i] = __float_as_uint(d[i / 4][i % 4]);
}

}  // namespace
}  // namespace bitshard::cuda

namespace bitshard {

int LaunchWgmmaVectors(const uint32_t* in, uint32_t* out, int blocks, void* stream) {
  return static_cast<int>(LAUNCH_KERNEL(
      cuda::WgmmaVectors, dim3(static_cast<unsigned>(blocks)), dim3(cuda::kThreads),
      cuda::kWgmmaTileBytes + cuda::kAlignment, static_cast<cudaStream_t>(stream), in, out));
}

}  // namespace bitshard
