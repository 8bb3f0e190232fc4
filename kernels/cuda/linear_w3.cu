// Integers of 3 bits: linear_launch.cuh.
#include "kernels/cuda/linear_launch.cuh"

namespace bitshard::cuda {

cudaError_t LaunchLinearW3(const LinearLaunch& launch, cudaStream_t stream) {
  return LaunchLinearInt<3>(launch, stream);
}

}  // namespace bitshard::cuda
