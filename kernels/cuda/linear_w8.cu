// Integers of 8 bits: linear_launch.cuh.
#include "kernels/cuda/linear_launch.cuh"

namespace bitshard::cuda {

cudaError_t LaunchLinearW8(const LinearLaunch& launch, cudaStream_t stream) {
  return LaunchLinearInt<8>(launch, stream);
}

}  // namespace bitshard::cuda
