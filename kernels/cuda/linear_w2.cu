// Integers of 2 bits: linear_launch.cuh.
#include "kernels/cuda/linear_launch.cuh"

namespace bitshard::cuda {

cudaError_t LaunchLinearW2(const LinearLaunch& launch, cudaStream_t stream) {
  return LaunchLinearInt<2>(launch, stream);
}

}  // namespace bitshard::cuda
