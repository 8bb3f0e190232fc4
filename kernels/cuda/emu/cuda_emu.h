// The language of the kernels: one .cu is built by nvcc for GPUs and by g++ for the emulator.
//
// A kernel includes this header and those of kernels/cuda/ptx that it needs, and nothing else of
// CUDA. CUDA's builtins keep their names in both builds. What differs between the builds goes
// through
//   SHARED_ARRAY(float, tile, [2][16])      static shared memory, aligned to 16 bytes,
//   uninitialized DYNAMIC_SHARED(uint4, ring)             the launch's dynamic shared memory:
//   uint4* ring LAUNCH_KERNEL(kernel, grid, block, dynamic_shared_bytes, stream, arguments...)
//       an expression of type cudaError_t: `return LAUNCH_KERNEL((Kernel<4, true>), ...)`. More
//       than 48 KiB of dynamic shared memory (up to 227 KiB) are asked for by themselves.
//   LAUNCH_KERNEL_EARLY(...)                the same, but the kernel may start before the stream's
//       previous kernel is done: all its threads call GridDependencyWait() (ptx/pdl.cuh) before
//       they touch what an earlier kernel writes, and before they write.
// and the functions of namespace bitshard::cuda below. Rules: no <<<>>>, no __shared__, no
// cooperative groups, no inline asm outside kernels/cuda/ptx, explicit vector types, __syncwarp()
// after an exchange through shared memory inside a warp (a shuffle is no fence), no waiting for
// another block.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <driver_types.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if defined(__CUDACC__)
#include "kernels/cuda/emu/language_nvcc.h"
#else
#include "kernels/cuda/emu/language_host.h"
#endif

namespace bitshard::cuda {

// f32 to 16 bits, to nearest even, stored as one 2-byte access. The device, not the toolkit's host
// path, defines NaN: 0x7fff.
__device__ __forceinline__ void StoreHalf(uint16_t* p, float value) { *p = HalfBits(value); }
__device__ __forceinline__ void StoreBf16(uint16_t* p, float value) { *p = Bf16Bits(value); }

}  // namespace bitshard::cuda
