// Programmatic dependent launch: a kernel launched with LAUNCH_KERNEL_EARLY overlaps the end of the
// one before it. Below sm_90 and after a plain LAUNCH_KERNEL both functions do nothing.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"

namespace bitshard::cuda {

#if defined(__CUDACC__)

// Until the stream's earlier kernels are done and what they wrote can be read. Weights may be read
// before; anything that a kernel writes may not.
__device__ __forceinline__ void GridDependencyWait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the stream's next kernel start once every block has called it or exited. Says nothing about
// what this kernel has written: the next one waits for its end.
__device__ __forceinline__ void GridDependencyLaunch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#else

__forceinline__ void GridDependencyWait() { emu::WaitForPreviousKernel(); }
__forceinline__ void GridDependencyLaunch() {}

#endif

}  // namespace bitshard::cuda
