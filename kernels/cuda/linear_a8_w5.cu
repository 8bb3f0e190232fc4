// Integers of 5 bits: linear_a8_launch.cuh.
#include "kernels/cuda/linear_a8_launch.cuh"

namespace bitshard::cuda {

cudaError_t LaunchLinearA8W5(const LinearA8Launch& launch, cudaStream_t stream) {
  return LaunchLinearA8Of<5>(launch, stream);
}

}  // namespace bitshard::cuda
