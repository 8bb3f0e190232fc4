// See faults.h. Blocks of 256 threads, one word each.
#include "kernels/cuda/emu/cuda_emu.h"
#include "tests/gpu/faults.h"

namespace bitshard::cuda {
namespace {

__global__ void Faulty(Fault fault, uint32_t* data) {
  SHARED_ARRAY(uint32_t, words, [kFaultWords]);
  const unsigned thread = threadIdx.x;
  if (fault != Fault::kUninitialized) data[thread] = thread;
  __syncthreads();
  const unsigned from = fault == Fault::kOutOfBounds ? thread + 1 : thread;
  words[thread] = data[from];
  if (fault != Fault::kRace) __syncthreads();
  data[thread] = words[(thread + 33) % kFaultWords];
}

}  // namespace
}  // namespace bitshard::cuda

namespace bitshard {

int LaunchFault(Fault fault, uint32_t* data, void* stream) {
  return static_cast<int>(LAUNCH_KERNEL(cuda::Faulty, dim3(1), dim3(kFaultWords), 0,
                                        static_cast<cudaStream_t>(stream), fault, data));
}

}  // namespace bitshard
