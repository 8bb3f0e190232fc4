// y = W x where no other kernel serves: f32 weights; segments or groups that do not end at
// multiples of 16 columns. One thread an output.
//
// Order of summation: a segment (or the whole K) from y = 0, its cells (weight group x segment)
// ascending. In a cell acc = fma(code - zero, x, acc) and X = X + x in ascending k, then y =
// fma(acc, s_w * s_x, y), and with minima y = fma(min, s_x * X, y). f16 and bf16: the segment is
// one cell, s_w = 1. f32: y = fma(w, x, y) over the f32 activations. Then the bias, or int64 as
// linear_cells.cuh.
#include "kernels/cuda/dequant_plain.cuh"
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/ptx/pdl.cuh"

namespace bitshard::cuda {
namespace {

constexpr int kThreads = 128;

// Of activations: column k within its run of 16.
__device__ __forceinline__ float ActivationAt(const uint16_t* row, int64_t k) {
  const int q = static_cast<int>(k % 16);
  return HalfToFloat(row[k - q + q % 8 / 2 * 4 + q % 2 + q / 8 * 2]);
}

__device__ float DotF32(const LinearLaunch& launch, const Weight& w, int64_t row, int64_t token,
                        int64_t begin, int64_t end) {
  const float* const x = launch.x + token * launch.cols;
  float y = 0;
  for (int64_t k = begin; k < end; ++k) y = fmaf(DenseValueOf(w, row, k), x[k], y);
  return y;
}

__device__ float DotHalf(const LinearLaunch& launch, const Weight& w, int64_t row, int64_t token,
                         float x_scale, int64_t begin, int64_t end) {
  const uint16_t* const x = launch.half + token * launch.padded_cols;
  float acc = 0;
  for (int64_t k = begin; k < end; ++k)
    acc = fmaf(DenseValueOf(w, row, k), ActivationAt(x, k), acc);
  return fmaf(acc, x_scale, 0.0f);
}

__device__ float DotInt(const LinearLaunch& launch, const Weight& w, int64_t row, int64_t token,
                        float x_scale, int64_t begin, int64_t end) {
  const uint16_t* const x = launch.half + token * launch.padded_cols;
  float y = 0;
  for (int64_t k = begin; k < end;) {
    const int64_t group = (k + w.scale.first_group_offset) / w.scale.group_size;
    const int64_t group_end = (group + 1) * w.scale.group_size - w.scale.first_group_offset;
    const int64_t cell_end = group_end < end ? group_end : end;
    const GroupNumbers numbers = NumbersOf(w.scale, row, group);
    float acc = 0, sum = 0;
    for (; k < cell_end; ++k) {
      const float value = ActivationAt(x, k);
      acc =
          fmaf(static_cast<float>(CodeOf(w, row, k) - static_cast<int>(numbers.zero)), value, acc);
      sum += value;
    }
    y = fmaf(acc, __fmul_rn(numbers.scale, x_scale), y);
    if (w.scale.has_min) y = fmaf(numbers.min, __fmul_rn(x_scale, sum), y);
  }
  return y;
}

__device__ float Dot(const LinearLaunch& launch, const Weight& w, int64_t row, int64_t token,
                     int64_t segment, int64_t begin, int64_t end) {
  if (w.type == WeightType::kF32) return DotF32(launch, w, row, token, begin, end);
  const float x_scale = launch.scale[token * launch.segments + segment];
  return w.type == WeightType::kInt ? DotInt(launch, w, row, token, x_scale, begin, end)
                                    : DotHalf(launch, w, row, token, x_scale, begin, end);
}

__global__ void __launch_bounds__(kThreads)
    LinearPlainKernel(const __grid_constant__ LinearLaunch launch) {
  GridDependencyLaunch();
  GridDependencyWait();
  const LinearMember& member = launch.members[0];
  const Weight& w = member.w;
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x, token = blockIdx.y;
  if (row >= w.rows) return;
  const int64_t at = token * member.stride + row;
  if (!launch.segmented) {
    float y = launch.cols == 0 ? 0.0f : Dot(launch, w, row, token, 0, 0, launch.cols);
    if (member.bias != nullptr) y += member.bias[row];
    member.y[at] = y;
    return;
  }
  long long sum = 0;
  unsigned long long poison = 0;
  for (int64_t segment = 0; segment < launch.segments; ++segment) {
    const int64_t begin = segment * launch.segment_cols;
    const int64_t end =
        begin + launch.segment_cols < launch.cols ? begin + launch.segment_cols : launch.cols;
    const float value = Dot(launch, w, row, token, segment, begin, end);
    if (fabsf(value) < member.limit) {
      sum += __float2ll_rn(value * 4294967296.0f);
    } else {
      ++poison;
    }
  }
  member.sums[at] = sum;
  if (poison != 0) atomicAdd(reinterpret_cast<unsigned long long*>(member.poison) + token, poison);
}

}  // namespace

cudaError_t LaunchLinearPlain(const LinearLaunch& launch, cudaStream_t stream) {
  if (launch.count != 1) return cudaErrorInvalidValue;
  const int64_t rows = launch.members[0].w.rows;
  if (rows <= 0 || launch.m <= 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
  return LAUNCH_KERNEL_EARLY(LinearPlainKernel, dim3(blocks, static_cast<unsigned>(launch.m)),
                             dim3(kThreads), 0, stream, launch);
}

}  // namespace bitshard::cuda
