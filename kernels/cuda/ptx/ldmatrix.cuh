// Four 8x8 matrices of 16-bit numbers from shared memory into the fragments of ptx/mma.cuh. All 32
// lanes call: lane l gives the address of row l % 8 of matrix l / 8 (16 bytes, aligned to 16) and
// gets of matrix m in r[m]
//   LdMatrixX4       row l / 4, columns 2 (l % 4) and the next
//   LdMatrixX4Trans  column l / 4, rows 2 (l % 4) and the next
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"

namespace bitshard::cuda {

#if defined(__CUDACC__)

__device__ __forceinline__ void LdMatrixX4(uint32_t (&r)[4], const void* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void LdMatrixX4Trans(uint32_t (&r)[4], const void* row) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

#else

__forceinline__ void LdMatrixX4(uint32_t (&r)[4], const void* row, EMU_WHERE) {
  emu::LdMatrix(emu::Collective::kLdMatrix, r, row, where);
}
__forceinline__ void LdMatrixX4Trans(uint32_t (&r)[4], const void* row, EMU_WHERE) {
  emu::LdMatrix(emu::Collective::kLdMatrixTrans, r, row, where);
}

#endif

}  // namespace bitshard::cuda
