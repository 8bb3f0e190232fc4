// How the kernels that make DeviceActivations (kernels/registry/device_kernels.h) do it: the
// largest magnitude of a segment, its power of two, then fp16 in the order of the mma's B operand,
// and sums of runs. A Source gives the values:
//   float2 Pair(int64_t row, int64_t col) const   columns col (even) and col + 1; 0 beyond the last
// It is asked twice for each. Bits do not depend on who computes which columns: the maximum has no
// order, and a run is summed by one lane.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/prepare_a8.cuh"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/cuda/ptx/pdl.cuh"
#include "kernels/cuda/rows.h"

namespace bitshard::cuda {

constexpr int kRowThreads = 256;
constexpr int kRowWarps = kRowThreads / 32;

// A warp's 8 runs of 16 values; the stride keeps its 8-byte stores in different banks.
constexpr int kTileRuns = 8;
using RunTile = float[kTileRuns][24];

// f32 at p and p + 1 of a row that has `left` more columns; `aligned`: to 8 bytes.
__device__ __forceinline__ float2 LoadPair(const float* p, int64_t left, bool aligned) {
  if (left >= 2 && aligned) return *reinterpret_cast<const float2*>(p);
  return make_float2(left >= 1 ? p[0] : 0.0f, left >= 2 ? p[1] : 0.0f);
}

inline bool RowsAreAligned(const void* x, int64_t stride) {
  return reinterpret_cast<uintptr_t>(x) % sizeof(float2) == 0 && stride % 2 == 0;
}

struct PlainSource {
  const float* x;
  int64_t stride, cols;
  bool aligned;
  __device__ __forceinline__ float2 Pair(int64_t row, int64_t col) const {
    return LoadPair(x + row * stride + col, cols - col, aligned);
  }
};

// |x|; infinity for NaN.
__device__ __forceinline__ float Magnitude(float x) {
  const float infinity = __uint_as_float(0x7f800000u);
  const float magnitude = fabsf(x);
  return magnitude < infinity ? magnitude : infinity;
}

// This thread's share of a segment's largest magnitude.
template <class Source>
__device__ __forceinline__ float LargestOf(const Source& source, int64_t row, int64_t begin,
                                           int64_t end, int thread, int threads) {
  float largest = 0;
  for (int64_t col = begin + 2 * thread; col < end; col += 2 * threads) {
    const float2 v = source.Pair(row, col);
    largest = fmaxf(largest, fmaxf(Magnitude(v.x), Magnitude(v.y)));
  }
  return largest;
}

struct PowerOfTwo {
  float scale;
  float inverse;  // 0: all fp16 values are 0
};
__device__ __forceinline__ PowerOfTwo ScaleFor(float largest) {
  const uint32_t exponent = __float_as_uint(largest) >> 23;
  if (largest == 0) return {0.0f, 0.0f};
  if (exponent == 255) return {__uint_as_float(0x7fc00000u), 0.0f};
  const uint32_t scale = exponent > 15 ? exponent - 14 : 1;
  return {__uint_as_float(scale << 23), __uint_as_float((254 - scale) << 23)};
}

__device__ __forceinline__ uint16_t ScaledHalf(float x, float inverse) {
  return inverse == 0 ? uint16_t{0} : HalfBits(x * inverse);
}

// 1 / scale, the same for all columns, or by the segment of each.
struct OneInverse {
  float value;
  __device__ __forceinline__ float At(int64_t) const { return value; }
};
struct InverseOfSegment {
  const float* scale;  // of the row
  int64_t segment_cols, segments;
  __device__ __forceinline__ float At(int64_t col) const {
    const float of_segment = scale[min(col / segment_cols, segments - 1)];
    const uint32_t exponent = __float_as_uint(of_segment) >> 23;
    return of_segment > 0 ? __uint_as_float((254 - exponent) << 23) : 0.0f;
  }
};

// fp16, run sums and f32 of columns [begin, end), multiples of 16, by warp `warp` of `warps`.
template <class Source, class Inverse>
__device__ __forceinline__ void ConvertRuns(const Source& source, int64_t row, int64_t begin,
                                            int64_t end, int warp, int warps,
                                            const Inverse& inverse, const PreparedRows& out,
                                            RunTile& tile) {
  const int lane = threadIdx.x % 32;
  const int run = lane / 4, t = lane % 4;  // four lanes a run
  for (int64_t first = begin + warp * (16 * kTileRuns); first < end;
       first += warps * (16 * kTileRuns)) {
    const int64_t col = first + 16 * run;
    if (col < end) {
      const int64_t low_col = col + 2 * t, high_col = low_col + 8;
      const float2 low = source.Pair(row, low_col), high = source.Pair(row, high_col);
      if (out.half != nullptr) {
        const uint16_t h0 = ScaledHalf(low.x, inverse.At(low_col));
        const uint16_t h1 = ScaledHalf(low.y, inverse.At(low_col + 1));
        const uint16_t h2 = ScaledHalf(high.x, inverse.At(high_col));
        const uint16_t h3 = ScaledHalf(high.y, inverse.At(high_col + 1));
        const uint2 packed = make_uint2(uint32_t{h1} << 16 | h0, uint32_t{h3} << 16 | h2);
        *reinterpret_cast<uint2*>(out.half + row * out.padded_cols + col + 4 * t) = packed;
        *reinterpret_cast<float2*>(&tile[run][2 * t]) =
            make_float2(HalfToFloat(h0), HalfToFloat(h1));
        *reinterpret_cast<float2*>(&tile[run][2 * t + 8]) =
            make_float2(HalfToFloat(h2), HalfToFloat(h3));
      }
      if (out.x != nullptr) {
        float* const x = out.x + row * out.cols;
        if (low_col < out.cols) x[low_col] = low.x;
        if (low_col + 1 < out.cols) x[low_col + 1] = low.y;
        if (high_col < out.cols) x[high_col] = high.x;
        if (high_col + 1 < out.cols) x[high_col + 1] = high.y;
      }
    }
    if (out.half == nullptr) continue;
    __syncwarp();
    if (lane < kTileRuns && first + 16 * lane < end) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) sum += tile[lane][i];
      out.run_sum[row * (out.padded_cols / 16) + first / 16 + lane] = sum;
    }
    __syncwarp();
  }
}

// The largest of all threads' values, for all of them. `of_warp` is for this call alone.
__device__ __forceinline__ float BlockMax(float value, float (&of_warp)[kRowWarps]) {
  value = WarpMax(value);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float largest = of_warp[0];
#pragma unroll
  for (int w = 1; w < kRowWarps; ++w) largest = fmaxf(largest, of_warp[w]);
  return largest;
}

// A row with one scale, by the whole block.
template <class Source>
__device__ __forceinline__ void PrepareRow(const Source& source, int64_t row,
                                           const PreparedRows& out, RunTile (&tiles)[kRowWarps],
                                           float (&of_warp)[kRowWarps]) {
  const int warp = threadIdx.x / 32;
  PowerOfTwo power = {0.0f, 0.0f};
  if (out.half != nullptr) {
    const float largest = LargestOf(source, row, 0, out.cols, threadIdx.x, kRowThreads);
    power = ScaleFor(BlockMax(largest, of_warp));
    if (threadIdx.x == 0) out.scale[row] = power.scale;
  }
  ConvertRuns(source, row, 0, out.padded_cols, warp, kRowWarps, OneInverse{power.inverse}, out,
              tiles[warp]);
}

// A row with any segments, by the whole block.
template <class Source>
__device__ __forceinline__ void PrepareRowOfSegments(const Source& source, int64_t row,
                                                     const PreparedRows& out,
                                                     RunTile (&tiles)[kRowWarps]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const scales = out.scale + row * out.segments;
  for (int64_t segment = warp; segment < out.segments; segment += kRowWarps) {
    const int64_t begin = segment * out.segment_cols;
    const int64_t end = min(begin + out.segment_cols, out.cols);
    float largest = 0;
    for (int64_t col = begin + lane; col < end; col += 32) {
      const float2 v = source.Pair(row, col - col % 2);
      largest = fmaxf(largest, Magnitude(col % 2 == 0 ? v.x : v.y));
    }
    largest = WarpMax(largest);
    if (lane == 0) scales[segment] = ScaleFor(largest).scale;
  }
  __syncthreads();
  const InverseOfSegment inverse = {scales, out.segment_cols, out.segments};
  ConvertRuns(source, row, 0, out.padded_cols, warp, kRowWarps, inverse, out, tiles[warp]);
}

// One segment of a multiple of 16 columns, by one warp. The last one pads the row.
template <class Source>
__device__ __forceinline__ void PrepareSegment(const Source& source, int64_t row, int64_t segment,
                                               const PreparedRows& out, RunTile& tile) {
  const int64_t begin = segment * out.segment_cols;
  const bool last = segment == out.segments - 1;
  const int64_t end = last ? out.cols : begin + out.segment_cols;
  const int lane = threadIdx.x % 32;
  const PowerOfTwo power = ScaleFor(WarpMax(LargestOf(source, row, begin, end, lane, 32)));
  if (lane == 0) out.scale[row * out.segments + segment] = power.scale;
  ConvertRuns(source, row, begin, last ? out.padded_cols : end, 0, 1, OneInverse{power.inverse},
              out, tile);
}

// A block is a row.
template <class Source>
__global__ void __launch_bounds__(kRowThreads) PrepareRowKernel(Source source, PreparedRows out) {
  SHARED_ARRAY(RunTile, tiles, [kRowWarps]);
  SHARED_ARRAY(float, of_warp, [kRowWarps]);
  GridDependencyLaunch();
  GridDependencyWait();
  if (threadIdx.x == 0) ClearCount(out.counts, blockIdx.x);
  if (out.segments == 1) {
    PrepareRow(source, blockIdx.x, out, tiles, of_warp);
  } else {
    PrepareRowOfSegments(source, blockIdx.x, out, tiles);
  }
}

// A warp is a segment.
template <class Source>
__global__ void __launch_bounds__(kRowThreads)
    PrepareSegmentsKernel(Source source, PreparedRows out) {
  SHARED_ARRAY(RunTile, tiles, [kRowWarps]);
  GridDependencyLaunch();
  GridDependencyWait();
  if (blockIdx.y == 0 && threadIdx.x == 0) ClearCount(out.counts, blockIdx.x);
  const int warp = threadIdx.x / 32;
  const int64_t segment = int64_t{blockIdx.y} * kRowWarps + warp;
  if (segment < out.segments) PrepareSegment(source, blockIdx.x, segment, out, tiles[warp]);
}

template <class Source>
cudaError_t LaunchPrepareOf(const Source& source, const PreparedRows& out, int64_t m,
                            cudaStream_t stream) {
  if (m == 0 || out.cols == 0) return cudaSuccess;
  if (out.a8.records != nullptr) {
    const cudaError_t error = LaunchPrepareA8(source, out.a8, m, stream);
    if (error != cudaSuccess || (out.half == nullptr && out.x == nullptr)) return error;
  }
  const unsigned rows = static_cast<unsigned>(m);
  if (out.segments == 1 || out.segment_cols % 16 != 0) {
    return LAUNCH_KERNEL_EARLY(PrepareRowKernel<Source>, dim3(rows), dim3(kRowThreads), 0, stream,
                               source, out);
  }
  const unsigned blocks = static_cast<unsigned>((out.segments + kRowWarps - 1) / kRowWarps);
  return LAUNCH_KERNEL_EARLY(PrepareSegmentsKernel<Source>, dim3(rows, blocks), dim3(kRowThreads),
                             0, stream, source, out);
}

}  // namespace bitshard::cuda
