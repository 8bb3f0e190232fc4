// Integers of 8 bits: linear_a8_launch.cuh.
#include "kernels/cuda/linear_a8_launch.cuh"

namespace bitshard::cuda {

cudaError_t LaunchLinearA8W8(const LinearA8Launch& launch, cudaStream_t stream) {
  return LaunchLinearA8Of<8>(launch, stream);
}

}  // namespace bitshard::cuda
