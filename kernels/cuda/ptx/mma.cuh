// Tensor-core products of one warp: d += a * b. All 32 lanes call; fragments as in the PTX manual
// (g = lane / 4, t = lane % 4):
//   m16n8k16, 16-bit:  a[0] row g, k 2t..2t+1;  a[1] row g+8;  a[2] row g, k 2t+8..2t+9;  a[3] row
//   g+8
//                      b[0] k 2t..2t+1 of column g;  b[1] k 2t+8..2t+9
//   m16n8k32, 8-bit:   a[0] row g, k 4t..4t+3;  a[1] row g+8;  a[2] row g, k 4t+16..;  a[3] row g+8
//                      b[0] k 4t..4t+3 of column g;  b[1] k 4t+16..4t+19
//   d[0], d[1] row g, columns 2t, 2t+1;  d[2], d[3] row g+8
// Emulated float sums: d and all products added in double, rounded once to f32. Hardware adds in
// blocks and truncates: results differ by its accumulation error.
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"

namespace bitshard::cuda {

#if defined(__CUDACC__)

__device__ __forceinline__ void MmaF16(float (&d)[4], const uint32_t (&a)[4],
                                       const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void MmaBf16(float (&d)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Unsigned a, signed b, sums wrap.
__device__ __forceinline__ void MmaU8S8(int32_t (&d)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#else

__forceinline__ void MmaF16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                            EMU_WHERE) {
  emu::Mma(emu::Collective::kMmaF16, d, a, b, where);
}
__forceinline__ void MmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                             EMU_WHERE) {
  emu::Mma(emu::Collective::kMmaBf16, d, a, b, where);
}
__forceinline__ void MmaU8S8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                             EMU_WHERE) {
  emu::Mma(emu::Collective::kMmaU8S8, d, a, b, where);
}

#endif

}  // namespace bitshard::cuda
