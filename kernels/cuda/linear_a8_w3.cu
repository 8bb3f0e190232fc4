// Integers of 3 bits: linear_a8_launch.cuh.
#include "kernels/cuda/linear_a8_launch.cuh"

namespace bitshard::cuda {

cudaError_t LaunchLinearA8W3(const LinearA8Launch& launch, cudaStream_t stream) {
  return LaunchLinearA8Of<3>(launch, stream);
}

}  // namespace bitshard::cuda
