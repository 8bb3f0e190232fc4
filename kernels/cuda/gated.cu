// activation(gate) * up on f32 rows, as f32 or at once in the prepared form.
#include "kernels/cuda/math.cuh"
#include "kernels/cuda/prepare.cuh"

namespace bitshard::cuda {
namespace {

template <bool kGelu>
struct GatedSource {
  PlainSource gate, up;
  static __device__ __forceinline__ float Value(float gate, float up) {
    return (kGelu ? GeluTanhF32(gate) : SiluF32(gate)) * up;
  }
  __device__ __forceinline__ float2 Pair(int64_t row, int64_t col) const {
    const float2 g = gate.Pair(row, col), u = up.Pair(row, col);
    return make_float2(Value(g.x, u.x), Value(g.y, u.y));
  }
};

template <bool kGelu>
__global__ void __launch_bounds__(kRowThreads) GatedKernel(GatedSource<kGelu> source, float* y) {
  GridDependencyLaunch();
  GridDependencyWait();
  const int64_t row = blockIdx.x, width = source.gate.cols;
  const int64_t col = 2 * (int64_t{blockIdx.y} * kRowThreads + threadIdx.x);
  if (col >= width) return;
  const float2 v = source.Pair(row, col);
  y[row * width + col] = v.x;
  if (col + 1 < width) y[row * width + col + 1] = v.y;
}

template <bool kGelu>
cudaError_t Launch(const DeviceGated& args, const PreparedRows* out, cudaStream_t stream) {
  const auto rows = [&](const float* x) {
    return PlainSource{x, args.in_stride, args.width, RowsAreAligned(x, args.in_stride)};
  };
  const GatedSource<kGelu> source = {rows(args.gate), rows(args.up)};
  if (args.y == nullptr)
    return out == nullptr ? cudaSuccess : LaunchPrepareOf(source, *out, args.m, stream);
  const int64_t blocks = (args.width + 2 * kRowThreads - 1) / (2 * kRowThreads);
  const dim3 grid(static_cast<unsigned>(args.m), static_cast<unsigned>(blocks));
  const cudaError_t error =
      LAUNCH_KERNEL_EARLY(GatedKernel<kGelu>, grid, dim3(kRowThreads), 0, stream, source, args.y);
  if (error != cudaSuccess || out == nullptr) return error;
  // From y: it may lie where gate or up was.
  return LaunchPrepare({args.y, args.width, args.m, *out}, stream);
}

}  // namespace

cudaError_t LaunchGated(const DeviceGated& args, const PreparedRows* out, cudaStream_t stream) {
  if (args.m == 0 || args.width == 0) return cudaSuccess;
  return args.gelu ? Launch<true>(args, out, stream) : Launch<false>(args, out, stream);
}

}  // namespace bitshard::cuda
