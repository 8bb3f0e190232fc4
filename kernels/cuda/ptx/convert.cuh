// Arithmetic and conversions on two halves packed in 32 bits (low half first). Each half is rounded
// once, to nearest even; a NaN is 0x7fff.
#pragma once

#include <cuda_fp8.h>

#include "kernels/cuda/emu/cuda_emu.h"

namespace bitshard::cuda {

#if defined(__CUDACC__)

__device__ __forceinline__ uint32_t HSub2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ __forceinline__ uint32_t HMul2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// a * b + c
__device__ __forceinline__ uint32_t HFma2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Two e4m3 codes (low byte first), exactly. One instruction from sm_89 on, integer code below.
__device__ __forceinline__ uint32_t CvtE4m3x2ToHalf2(uint16_t codes) {
  const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
  return static_cast<uint32_t>(h.y) << 16 | h.x;
}

__device__ __forceinline__ float HalfToFloat(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

#else

// `function` of the low and of the high halves.
template <class Function>
__forceinline__ uint32_t OnHalves(const Function& function) {
  return uint32_t{function(16)} << 16 | function(0);
}
__forceinline__ float HalfToFloat(uint16_t bits) { return F16ToF32(bits); }

// f32 holds more than twice a half's digits plus two, so rounding through f32 rounds once.
__forceinline__ uint32_t HSub2(uint32_t a, uint32_t b) {
  return OnHalves([a, b](int shift) {
    return HalfBits(F16ToF32(uint16_t(a >> shift)) - F16ToF32(uint16_t(b >> shift)));
  });
}
__forceinline__ uint32_t HMul2(uint32_t a, uint32_t b) {
  return OnHalves([a, b](int shift) {
    return HalfBits(F16ToF32(uint16_t(a >> shift)) * F16ToF32(uint16_t(b >> shift)));
  });
}
// In double the sum is exact wherever it matters to the half; the toolkit rounds it once.
__forceinline__ uint32_t HFma2(uint32_t a, uint32_t b, uint32_t c) {
  return OnHalves([a, b, c](int shift) -> uint16_t {
    const double sum =
        static_cast<double>(F16ToF32(uint16_t(a >> shift))) * F16ToF32(uint16_t(b >> shift)) +
        F16ToF32(uint16_t(c >> shift));
    return sum != sum ? 0x7fff : __half_raw(__double2half(sum)).x;
  });
}
__forceinline__ uint32_t CvtE4m3x2ToHalf2(uint16_t codes) {
  return OnHalves(
      [codes](int shift) { return HalfBits(E4m3ToF32(uint8_t(codes >> (shift / 2)))); });
}

#endif

}  // namespace bitshard::cuda
