// fp16 activations with power-of-two scales from f32 rows.
#include "kernels/cuda/prepare.cuh"

namespace bitshard::cuda {

cudaError_t LaunchPrepare(const PrepareArgs& args, cudaStream_t stream) {
  const PlainSource source = {args.x, args.stride, args.out.cols,
                              RowsAreAligned(args.x, args.stride)};
  return LaunchPrepareOf(source, args.out, args.m, stream);
}

}  // namespace bitshard::cuda
