// What the elements of the KV cache mean: kernels/base/float_types.h and
// kernels/registry/attention_codes.h bit by bit, NaN included.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/tensor/kv_layout.h"

namespace bitshard::cuda {

// kHasScales: a token has one. Stored: one element; Pair: two, stored at once. Value: exact.
// Encode: with the token's scale, where the type has scales.
template <KvType kType>
struct KvElement;

template <>
struct KvElement<KvType::kF32> {
  static constexpr bool kHasScales = KvHasScales(KvType::kF32);
  using Stored = float;
  using Pair = float2;
  static __device__ __forceinline__ float Value(float bits) { return bits; }
  static __device__ __forceinline__ float Encode(float x, float) { return x; }
};

template <>
struct KvElement<KvType::kBf16> {
  static constexpr bool kHasScales = KvHasScales(KvType::kBf16);
  using Stored = uint16_t;
  using Pair = ushort2;
  static __device__ __forceinline__ float Value(uint16_t bits) {
    return __uint_as_float(uint32_t{bits} << 16);
  }
  static __device__ __forceinline__ uint16_t Encode(float x, float) {
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};

template <>
struct KvElement<KvType::kF16> {
  static constexpr bool kHasScales = KvHasScales(KvType::kF16);
  using Stored = uint16_t;
  using Pair = ushort2;
  static __device__ __forceinline__ float Value(uint16_t bits) { return HalfToFloat(bits); }
  static __device__ __forceinline__ uint16_t Encode(float x, float) {
    const uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
      return static_cast<uint16_t>(((u >> 16) & 0x8000u) | 0x7e00u);
    return HalfBits(x);
  }
};

// A usable scale is above 0; all codes of others are 0.
template <>
struct KvElement<KvType::kInt8> {
  static constexpr bool kHasScales = KvHasScales(KvType::kInt8);
  using Stored = uint8_t;
  using Pair = uchar2;
  static constexpr float kLargest = 127.0f;
  static __device__ __forceinline__ float Value(uint8_t code) {
    return static_cast<float>(static_cast<int8_t>(code));
  }
  static __device__ __forceinline__ uint8_t Encode(float x, float scale) {
    if (!(scale > 0)) return 0;
    const float y = rintf(x / scale);
    const float code = y > kLargest ? kLargest : y < -kLargest ? -kLargest : y;
    return static_cast<uint8_t>(static_cast<int>(code));
  }
};

template <>
struct KvElement<KvType::kFp8E4m3> {
  static constexpr bool kHasScales = KvHasScales(KvType::kFp8E4m3);
  using Stored = uint8_t;
  using Pair = uchar2;
  static constexpr float kLargest = 1.75f;  // 448 * 2^-8
  static __device__ __forceinline__ float Value(uint8_t code) {
    return HalfToFloat(static_cast<uint16_t>((code & 0x80u) << 8 | (code & 0x7fu) << 7));
  }
  static __device__ __forceinline__ uint8_t Encode(float x, float scale) {
    constexpr float kSmallestNormal = 0x1p-14f, kSubnormalShift = 64.0f;
    if (!(scale > 0)) return 0;
    const uint32_t bits = __float_as_uint(x / scale);
    float magnitude = __uint_as_float(bits & 0x7fffffffu);
    if (magnitude > kLargest) magnitude = kLargest;
    const uint32_t m = __float_as_uint(magnitude);
    const uint32_t code =
        magnitude < kSmallestNormal
            ? __float_as_uint(magnitude + kSubnormalShift) - __float_as_uint(kSubnormalShift)
            : ((m + 0x7ffffu + ((m >> 20) & 1u)) >> 20) - (112u << 3);
    return static_cast<uint8_t>(code | ((bits >> 24) & 0x80u));
  }
};

// visit(std::integral_constant<KvType, type>()): a kernel for each type of cache.
template <class Visit>
cudaError_t VisitKvType(KvType type, const Visit& visit) {
  switch (type) {
    case KvType::kBf16:
      return visit(std::integral_constant<KvType, KvType::kBf16>());
    case KvType::kF32:
      return visit(std::integral_constant<KvType, KvType::kF32>());
    case KvType::kF16:
      return visit(std::integral_constant<KvType, KvType::kF16>());
    case KvType::kInt8:
      return visit(std::integral_constant<KvType, KvType::kInt8>());
    case KvType::kFp8E4m3:
      return visit(std::integral_constant<KvType, KvType::kFp8E4m3>());
  }
  return cudaErrorInvalidValue;
}

}  // namespace bitshard::cuda
