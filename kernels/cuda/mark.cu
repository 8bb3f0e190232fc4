// How far a stream has come, in a word that the host can read.
#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/rows.h"

namespace bitshard::cuda {
namespace {

// A plain launch: it starts when all work before it is done.
__global__ void MarkKernel(uint64_t* word, uint64_t value) {
  *static_cast<volatile uint64_t*>(word) = value;
  __threadfence_system();
}

}  // namespace

cudaError_t LaunchMark(uint64_t* word, uint64_t value, cudaStream_t stream) {
  return LAUNCH_KERNEL(MarkKernel, dim3(1), dim3(1), 0, stream, word, value);
}

}  // namespace bitshard::cuda
