// Activations as int8 with a scale for 32 columns (DeviceActivations::a8), with the bits of the
// CPU's kFormA8 (kernels/registry/activations.h). A Source gives the values, as in prepare.cuh.
//
// A group of 32 columns is eight lanes: four a run of 16, the four columns each that the mma wants
// of it. Groups restart at every segment; those of the last one go on to the end of the padding.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/rows.h"

namespace bitshard::cuda {

constexpr int kA8WarpGroups = 4;

struct A8Quantizer {
  float scale;
  bool zero;  // all q are 0
  // Of the largest magnitude's bits: NaN has the largest of all.
  __device__ __forceinline__ explicit A8Quantizer(uint32_t largest) {
    constexpr float kSmallest = 1.17549435e-38f;  // 2^-126
    const bool finite = largest < 0x7f800000u;
    scale = finite ? __uint_as_float(largest) / 127.0f : __uint_as_float(0x7fc00000u);
    zero = !finite || scale < kSmallest;
    if (finite && zero) scale = 0;
  }
  __device__ __forceinline__ int Quantize(float x) const {
    return zero ? 0 : __float2int_rn(x / scale);
  }
};

__device__ __forceinline__ uint32_t MagnitudeBits(float x) {
  return __float_as_uint(x) & 0x7fffffffu;
}

// Groups of a row, by warp `warp` of `warps`.
template <class Source>
__device__ __forceinline__ void QuantizeGroups(const Source& source, int64_t row, const A8Rows& out,
                                               int64_t warp, int64_t warps) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int run_of_group = lane / 4 % 2, t = lane % 4;
  const int64_t segment_groups = (out.segment_cols + 31) / 32;
  uint8_t* const records = out.records + row * out.row_bytes;
  for (int64_t first = warp * kA8WarpGroups; first < out.groups; first += warps * kA8WarpGroups) {
    const int64_t group = first + lane / 8;
    const int64_t segment = min(group / segment_groups, out.segments - 1);
    const int64_t begin = segment * out.segment_cols;
    const int64_t end = segment == out.segments - 1 ? out.padded_cols : begin + out.segment_cols;
    const int64_t col = begin + (group - segment * segment_groups) * 32 + run_of_group * 16;
    const bool there = col < end;
    float2 low = make_float2(0.0f, 0.0f), high = low;
    if (there) {
      low = source.Pair(row, col + 2 * t);
      high = source.Pair(row, col + 2 * t + 8);
    }

    uint32_t largest = max(max(MagnitudeBits(low.x), MagnitudeBits(low.y)),
                           max(MagnitudeBits(high.x), MagnitudeBits(high.y)));
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2)
      largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
    const A8Quantizer quantizer(largest);
    const int q[4] = {quantizer.Quantize(low.x), quantizer.Quantize(high.x),
                      quantizer.Quantize(low.y), quantizer.Quantize(high.y)};
    int sum = q[0] + q[1] + q[2] + q[3];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int other = __shfl_xor_sync(0xffffffffu, sum, 4);
    if (!there) continue;

    const int run = static_cast<int>(col / 16 % 4);
    uint8_t* const record = records + col / 64 * kA8RecordBytes;
    uint32_t packed = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) packed |= (static_cast<uint32_t>(q[i]) & 255u) << (8 * i);
    *reinterpret_cast<uint32_t*>(record + 16 * t + 4 * run) = packed;
    if (t != 0) continue;
    *reinterpret_cast<float*>(record + 64 + run % 2 * 16 + run / 2 * 4) = quantizer.scale;
    *reinterpret_cast<int16_t*>(record + 88 + 2 * run) = static_cast<int16_t>(sum);
    if (run % 2 == 0)
      *reinterpret_cast<int32_t*>(record + 72 + run / 2 * 4) =
          run_of_group == 0 ? sum + other : sum;
  }
}

// Of DeviceActivations::counts; by one thread of the row.
__device__ __forceinline__ void ClearCount(int64_t* counts, int64_t row) {
  if (counts != nullptr) counts[row] = 0;
}

constexpr int kA8Threads = 256;

template <class Source>
__global__ void __launch_bounds__(kA8Threads) PrepareA8Kernel(Source source, A8Rows out) {
  GridDependencyLaunch();
  GridDependencyWait();
  if (blockIdx.y == 0 && threadIdx.x == 0) ClearCount(out.counts, blockIdx.x);
  constexpr int kWarps = kA8Threads / 32;
  QuantizeGroups(source, blockIdx.x, out,
                 int64_t{blockIdx.y} * kWarps + static_cast<int>(threadIdx.x) / 32,
                 int64_t{gridDim.y} * kWarps);
}

template <class Source>
cudaError_t LaunchPrepareA8(const Source& source, const A8Rows& out, int64_t m,
                            cudaStream_t stream) {
  if (m == 0 || out.cols == 0) return cudaSuccess;
  constexpr int64_t kBlockGroups = kA8WarpGroups * kA8Threads / 32;
  const auto blocks = static_cast<unsigned>((out.groups + kBlockGroups - 1) / kBlockGroups);
  return LAUNCH_KERNEL_EARLY(PrepareA8Kernel<Source>, dim3(static_cast<unsigned>(m), blocks),
                             dim3(kA8Threads), 0, stream, source, out);
}

}  // namespace bitshard::cuda
