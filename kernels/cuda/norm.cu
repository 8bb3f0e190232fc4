// RMS norm of f32 rows, a block a row: statistics in f32 in an order that follows from the width
// alone (rows.h), then y and the prepared form.
#include "kernels/cuda/prepare.cuh"

namespace bitshard::cuda {
namespace {

struct NormSource {
  PlainSource x;
  PlainSource weight;  // one row
  float inverse;
  __device__ __forceinline__ float2 Pair(int64_t row, int64_t col) const {
    const float2 v = x.Pair(row, col), w = weight.Pair(0, col);
    return make_float2(w.x * (v.x * inverse), w.y * (v.y * inverse));
  }
};

__device__ __forceinline__ float SumOfSquares(const PlainSource& x, int64_t row,
                                              float (&of_warp)[kRowWarps]) {
  float sum = 0;
  for (int64_t col = 2 * threadIdx.x; col < x.cols; col += 2 * kRowThreads) {
    const float2 v = x.Pair(row, col);
    sum = fmaf(v.x, v.x, sum);
    sum = fmaf(v.y, v.y, sum);
  }
  sum = WarpSum(sum);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = of_warp[0];
#pragma unroll
  for (int w = 1; w < kRowWarps; ++w) total += of_warp[w];
  return total;
}

template <class Source>
__device__ __forceinline__ void Prepare(const Source& source, int64_t row, const PreparedRows& out,
                                        RunTile (&tiles)[kRowWarps], float (&of_warp)[kRowWarps]) {
  if (out.segments == 1) {
    PrepareRow(source, row, out, tiles, of_warp);
  } else {
    PrepareRowOfSegments(source, row, out, tiles);
  }
}

__global__ void __launch_bounds__(kRowThreads)
    NormKernel(NormSource source, float epsilon, float* y, bool y_aligned, bool prepare,
               PreparedRows out) {
  SHARED_ARRAY(RunTile, tiles, [kRowWarps]);
  SHARED_ARRAY(float, sums, [kRowWarps]);
  SHARED_ARRAY(float, largest, [kRowWarps]);
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t row = blockIdx.x, width = source.x.cols;
  const float mean = SumOfSquares(source.x, row, sums) / static_cast<float>(width);
  source.inverse = 1.0f / sqrtf(mean + epsilon);
  if (y == nullptr) {
    if (prepare) Prepare(source, row, out, tiles, largest);
    return;
  }
  float* const to = y + row * width;
  for (int64_t col = 2 * threadIdx.x; col < width; col += 2 * kRowThreads) {
    const float2 v = source.Pair(row, col);
    to[col] = v.x;
    if (col + 1 < width) to[col + 1] = v.y;
  }
  __syncthreads();
  // From y: it may lie where x was.
  const PlainSource made = {y, width, width, y_aligned};
  if (prepare) Prepare(made, row, out, tiles, largest);
}

}  // namespace

cudaError_t LaunchNorm(const NormArgs& args, cudaStream_t stream) {
  if (args.m == 0 || args.width == 0) return cudaSuccess;
  const NormSource source = {{args.x, args.width, args.width, RowsAreAligned(args.x, args.width)},
                             {args.weight, 0, args.width, RowsAreAligned(args.weight, 0)},
                             0.0f};
  return LAUNCH_KERNEL_EARLY(NormKernel, dim3(static_cast<unsigned>(args.m)), dim3(kRowThreads), 0,
                             stream, source, args.epsilon, args.y,
                             RowsAreAligned(args.y, args.width), args.prepare, args.out);
}

}  // namespace bitshard::cuda
