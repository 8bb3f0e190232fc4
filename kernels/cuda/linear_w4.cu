// Integers of 4 bits: linear_launch.cuh.
#include "kernels/cuda/linear_launch.cuh"

namespace bitshard::cuda {

cudaError_t LaunchLinearW4(const LinearLaunch& launch, cudaStream_t stream) {
  return LaunchLinearInt<4>(launch, stream);
}

}  // namespace bitshard::cuda
