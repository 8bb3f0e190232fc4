// RMS norm of f32 rows, a block a row: statistics in f32 in an order that follows from the width
// alone (rows.h), then y and the prepared form. Of rows that are there, or of a sum of ranks.
#include "kernels/cuda/prepare.cuh"
#include "kernels/cuda/sum.cuh"

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

// Of the pairs `pair(col)` gives; each is asked for once. Behind it the block has met.
template <class PairAt>
__device__ __forceinline__ float SumOfSquares(int64_t width, const PairAt& pair,
                                              float (&of_warp)[kRowWarps]) {
  float sum = 0;
  for (int64_t col = 2 * threadIdx.x; col < width; col += 2 * kRowThreads) {
    const float2 v = pair(col);
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
  if (out.a8.records != nullptr) QuantizeGroups(source, row, out.a8, threadIdx.x / 32, kRowWarps);
  if (out.half == nullptr && out.x == nullptr) return;
  if (out.segments == 1) {
    PrepareRow(source, row, out, tiles, of_warp);
  } else {
    PrepareRowOfSegments(source, row, out, tiles);
  }
}

// What is made of a row once it is there, and where it goes.
struct NormWork {
  NormSource source;  // its inverse is the row's
  float epsilon;
  float* y;  // null: not wanted
  bool y_aligned;
  bool prepare;
  PreparedRows out;
};

__device__ __forceinline__ void Normalize(const NormWork& work, int64_t row, float squares,
                                          RunTile (&tiles)[kRowWarps],
                                          float (&of_warp)[kRowWarps]) {
  NormSource source = work.source;
  const int64_t width = source.x.cols;
  source.inverse = 1.0f / sqrtf(squares / static_cast<float>(width) + work.epsilon);
  if (work.y == nullptr) {
    if (work.prepare) Prepare(source, row, work.out, tiles, of_warp);
    return;
  }
  float* const to = work.y + row * width;
  for (int64_t col = 2 * threadIdx.x; col < width; col += 2 * kRowThreads) {
    const float2 v = source.Pair(row, col);
    to[col] = v.x;
    if (col + 1 < width) to[col + 1] = v.y;
  }
  __syncthreads();
  // From y: it may lie where x was.
  const PlainSource made = {work.y, width, width, work.y_aligned};
  if (work.prepare) Prepare(made, row, work.out, tiles, of_warp);
}

__global__ void __launch_bounds__(kRowThreads) NormKernel(const __grid_constant__ NormWork work) {
  SHARED_ARRAY(RunTile, tiles, [kRowWarps]);
  SHARED_ARRAY(float, sums, [kRowWarps]);
  SHARED_ARRAY(float, largest, [kRowWarps]);
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t row = blockIdx.x;
  const auto pair = [&](int64_t col) { return work.source.x.Pair(row, col); };
  Normalize(work, row, SumOfSquares(work.source.x.cols, pair, sums), tiles, largest);
}

// The row's sum first. The bits are those of SumKernel and NormKernel.
__global__ void __launch_bounds__(kRowThreads)
    SumNormKernel(const __grid_constant__ DeviceSum sum, const __grid_constant__ NormWork work) {
  SHARED_ARRAY(RunTile, tiles, [kRowWarps]);
  SHARED_ARRAY(float, sums, [kRowWarps]);
  SHARED_ARRAY(float, largest, [kRowWarps]);
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t row = blockIdx.x, width = sum.width;
  if (row == 0 && threadIdx.x == 0) MarkProgress(sum);
  const bool poisoned = IsPoisoned(sum, row, threadIdx.x == 0);
  float* const x = sum.x + row * width;
  const auto pair = [&](int64_t col) {
    float2 v = make_float2(ValueOf(sum, row, col, poisoned), 0.0f);
    x[col] = v.x;
    if (col + 1 < width) x[col + 1] = v.y = ValueOf(sum, row, col + 1, poisoned);
    return v;
  };
  Normalize(work, row, SumOfSquares(width, pair, sums), tiles, largest);
}

}  // namespace

cudaError_t LaunchNorm(const DeviceNorm& args, const PreparedRows* out, cudaStream_t stream) {
  if (args.m == 0 || args.width == 0) return cudaSuccess;
  const NormWork work = {{{args.x, args.width, args.width, RowsAreAligned(args.x, args.width)},
                          {args.weight, 0, args.width, RowsAreAligned(args.weight, 0)},
                          0.0f},
                         args.epsilon,
                         args.y,
                         RowsAreAligned(args.y, args.width),
                         out != nullptr,
                         out == nullptr ? PreparedRows() : *out};
  const dim3 grid(static_cast<unsigned>(args.m)), block(kRowThreads);
  if (args.sum != nullptr)
    return LAUNCH_KERNEL_EARLY(SumNormKernel, grid, block, 0, stream, *args.sum, work);
  return LAUNCH_KERNEL_EARLY(NormKernel, grid, block, 0, stream, work);
}

}  // namespace bitshard::cuda
