// f16 and bf16 weights: linear_launch.cuh.
#include "kernels/cuda/linear_launch.cuh"

namespace bitshard::cuda {

cudaError_t LaunchLinearHalf(const LinearLaunch& launch, cudaStream_t stream) {
  return launch.count > 0 && launch.members[0].w.type == WeightType::kBf16
             ? LaunchLinearWith<HalfWeights<true>, 2>(launch, stream)
             : LaunchLinearWith<HalfWeights<false>, 2>(launch, stream);
}

}  // namespace bitshard::cuda
