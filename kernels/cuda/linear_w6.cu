// Integers of 6 bits: linear_launch.cuh.
#include "kernels/cuda/linear_launch.cuh"

namespace bitshard::cuda {

cudaError_t LaunchLinearW6(const LinearLaunch& launch, cudaStream_t stream) {
  return LaunchLinearInt<6>(launch, stream);
}

}  // namespace bitshard::cuda
