// Integers of 7 bits: linear_launch.cuh.
#include "kernels/cuda/linear_launch.cuh"

namespace bitshard::cuda {

cudaError_t LaunchLinearW7(const LinearLaunch& launch, cudaStream_t stream) {
  return LaunchLinearInt<7>(launch, stream);
}

}  // namespace bitshard::cuda
