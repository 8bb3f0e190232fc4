// The 8-bit codes of the KV cache, one value at a time: the definition that all kernels follow bit
// by bit.
//
// A token's K (and V) of one kv head has one f32 scale s.
//   int8:     s = amax / 127, code = x / s, rounded to nearest even, within [-127, 127]
//   fp8_e4m3: s = amax / 1.75, code = x / s in e4m3 counted in units of 2^-8 (so that 448, the
//             largest, is 1.75): rounded to nearest even, saturated. 256 s is the scale of the
//             usual e4m3 values. A code with 7 more zero bits behind its exponent and mantissa is
//             the f16 of its value: decoding is exact and needs no table.
// amax is the largest magnitude; divisions are rounded to f32. s = 0 makes all codes 0. With an
// infinity or NaN among the values s is NaN and all codes are 0: whoever reads the token gets NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/base/float_types.h"
#include "kernels/tensor/kv_layout.h"

namespace bitshard {

inline constexpr float kInt8Largest = 127.0f;
inline constexpr float kFp8Largest = 1.75f;  // 448 * 2^-8
inline constexpr float kFp8SmallestNormal = 0x1p-14f;
inline constexpr float kFp8SubnormalShift = 64.0f;  // its ulp is that of the subnormals, 2^-17

inline float KvScale(KvType type, const float* x, int head_dim) {
  uint32_t amax = 0;  // as bits: NaN > infinity > finite
  for (int d = 0; d < head_dim; ++d) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[d]) & 0x7fffffffu;
    amax = magnitude > amax ? magnitude : amax;
  }
  if (amax >= 0x7f800000u) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(amax) / (type == KvType::kInt8 ? kInt8Largest : kFp8Largest);
}

// The rest REQUIRES: `scale` is that of the token that x belongs to.
inline bool KvScaleIsUsable(float scale) { return scale > 0; }

inline uint8_t EncodeInt8(float x, float scale) {
  if (!KvScaleIsUsable(scale)) return 0;
  const float y = std::nearbyint(x / scale);
  const float code = y > kInt8Largest ? kInt8Largest : y < -kInt8Largest ? -kInt8Largest : y;
  return static_cast<uint8_t>(static_cast<int8_t>(code));
}
inline float DecodeInt8(uint8_t code) { return static_cast<float>(static_cast<int8_t>(code)); }

inline uint8_t EncodeFp8(float x, float scale) {
  if (!KvScaleIsUsable(scale)) return 0;
  const float y = x / scale;
  const uint32_t bits = std::bit_cast<uint32_t>(y);
  float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  if (magnitude > kFp8Largest) magnitude = kFp8Largest;
  const uint32_t m = std::bit_cast<uint32_t>(magnitude);
  uint32_t code;
  if (magnitude < kFp8SmallestNormal) {
    code = std::bit_cast<uint32_t>(magnitude + kFp8SubnormalShift) -
           std::bit_cast<uint32_t>(kFp8SubnormalShift);
  } else {
    code = ((m + 0x7ffffu + ((m >> 20) & 1u)) >> 20) - (112u << 3);
  }
  return static_cast<uint8_t>(code | ((bits >> 24) & 0x80u));
}
inline float DecodeFp8(uint8_t code) {
  return F16ToF32(static_cast<uint16_t>((code & 0x80u) << 8 | (code & 0x7fu) << 7));
}

}  // namespace bitshard
