// Integers of 5 bits: linear_launch.cuh.
#include "kernels/cuda/linear_launch.cuh"

namespace bitshard::cuda {

cudaError_t LaunchLinearW5(const LinearLaunch& launch, cudaStream_t stream) {
  return LaunchLinearInt<5>(launch, stream);
}

}  // namespace bitshard::cuda
