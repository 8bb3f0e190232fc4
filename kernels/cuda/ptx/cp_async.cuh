// Copies from global to shared memory that go on while the thread works.
//
// A thread's copies form groups (CpAsyncCommit); CpAsyncWait<N> returns when all but its newest N
// groups have landed, for that thread alone: a barrier makes them visible to the others. In
// emulation a copy lands at the latest legal moment, in CpAsyncWait, or with a test option at the
// earliest, at once.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"

namespace bitshard::cuda {

#if defined(__CUDACC__)

// 16 bytes, both addresses aligned to 16, past L1. Bytes from `src_bytes` on are filled with zeros;
// with 0 nothing is read from `global`.
__device__ __forceinline__ void CpAsync16(void* shared, const void* global, int src_bytes = 16) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(address), "l"(global), "r"(src_bytes)
               : "memory");
}

__device__ __forceinline__ void CpAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

#else

__forceinline__ void CpAsync16(void* shared, const void* global, int src_bytes = 16, EMU_WHERE) {
  emu::CopyAsync(shared, global, src_bytes, where);
}
__forceinline__ void CpAsyncCommit() { emu::CommitCopies(); }
template <int N>
__forceinline__ void CpAsyncWait() {
  emu::WaitForCopies(N);
}

#endif

}  // namespace bitshard::cuda
