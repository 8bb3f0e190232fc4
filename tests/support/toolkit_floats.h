// 16- and 8-bit floats by the host functions of CUDA's own headers: what our conversions are held
// to.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

namespace bitshard::toolkit {

inline float HalfToFloat(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
inline float Bf16ToFloat(uint16_t bits) { return __bfloat162float(__ushort_as_bfloat16(bits)); }
inline float E4m3ToFloat(uint8_t bits) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
}
inline uint16_t ToHalf(float value) { return __half_as_ushort(__float2half_rn(value)); }
inline uint16_t ToHalf(double value) { return __half_as_ushort(__double2half(value)); }
inline uint16_t ToBf16(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }

}  // namespace bitshard::toolkit
