// Loads of data that is read once, such as weights: read-only path, not kept in L1, first to leave
// L2. The memory must not change during the launch.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"

namespace bitshard::cuda {

#if defined(__CUDACC__)

// The compiler moves it out of loops.
__device__ __forceinline__ uint64_t EvictFirstPolicy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ uint4 LoadStreaming(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(EvictFirstPolicy()));
  return v;
}

__device__ __forceinline__ uint2 LoadStreaming(const uint2* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.u32 {%0,%1}, [%2], %3;"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p), "l"(EvictFirstPolicy()));
  return v;
}

__device__ __forceinline__ uint32_t LoadStreaming(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.u32 %0, [%1], %2;"
               : "=r"(v)
               : "l"(p), "l"(EvictFirstPolicy()));
  return v;
}

#else

__forceinline__ uint4 LoadStreaming(const uint4* p) { return *p; }
__forceinline__ uint2 LoadStreaming(const uint2* p) { return *p; }
__forceinline__ uint32_t LoadStreaming(const uint32_t* p) { return *p; }

#endif

}  // namespace bitshard::cuda
