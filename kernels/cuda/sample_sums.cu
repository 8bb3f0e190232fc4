// Sums over rows of logits for a known maximum: RawSum and MassSum of worker/sample/row_scan.h with
// their bits. What is summed is whole numbers, so that no order matters.
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/sample_math.cuh"

namespace bitshard::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kUnit = 64;   // tokens whose exponentials are added in f32
constexpr int kLanes = 16;  // that do it
constexpr int kTerms = kUnit / kLanes;
constexpr int kUnitsAtOnce = kThreads / kLanes;
// exp(t) 2^40 + 0.5 < 1 below: no mass, whether exp is asked or not.
constexpr float kNoMassBelow = -28.5f;

__device__ __forceinline__ void AddToRow(int64_t mine, int64_t* sum) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1)
    mine += __shfl_xor_sync(0xffffffffu, mine, offset);
  if (threadIdx.x % 32 != 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(mine));
}

__global__ void __launch_bounds__(kThreads) MassSumsKernel(DeviceMassSums args) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t row = blockIdx.y, first = int64_t{blockIdx.x} * kScanTokens;
  const LogitSumRequest request = args.requests[row];
  if (request.raw == 0 && request.mass == 0) return;
  const float* const logits = args.logits + row * args.stride + first;
  const int count = static_cast<int>(min(args.count - first, int64_t{kScanTokens}));
  const float floor = fmaxf(request.floor, kNoMassBelow);
  const int lane = threadIdx.x % kLanes;
  int64_t raw = 0, mass = 0;
  for (int units = 0; units * kUnit < count; units += kUnitsAtOnce) {
    const int at = (units + static_cast<int>(threadIdx.x) / kLanes) * kUnit + lane;
    float e[kTerms];
#pragma unroll
    for (int i = 0; i < kTerms; ++i) {
      e[i] = 0;
      const int token = at + i * kLanes;
      if (token >= count) continue;
      const float shifted = logits[token] - request.max;
      if (request.raw != 0) e[i] = ExpF32(shifted);
      if (request.mass == 0) continue;
      const float t = shifted / request.temperature;
      if (t >= floor) mass += ScaleMass(ExpF32(t));
    }
    if (request.raw == 0) continue;
    float sum = ((e[0] + e[1]) + e[2]) + e[3];
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset >>= 1)
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (lane == 0) raw += ScaleMass(sum);
  }
  if (request.raw != 0) AddToRow(raw, &args.sums[row].raw);
  if (request.mass != 0) AddToRow(mass, &args.sums[row].mass);
}

}  // namespace

cudaError_t LaunchMassSums(const DeviceMassSums& args, cudaStream_t stream) {
  if (args.m == 0 || args.count == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(ScanChunks(args.count)), static_cast<unsigned>(args.m));
  return LAUNCH_KERNEL_EARLY(MassSumsKernel, grid, dim3(kThreads), 0, stream, args);
}

}  // namespace bitshard::cuda
