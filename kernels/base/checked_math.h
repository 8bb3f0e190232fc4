// Arithmetic on sizes that come from outside: every step either fits or says so.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>

namespace bitshard {

inline std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t out;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t out;
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

inline std::optional<uint64_t> CheckedProduct(std::initializer_list<uint64_t> factors) {
  uint64_t out = 1;
  for (uint64_t f : factors) {
    if (__builtin_mul_overflow(out, f, &out)) return std::nullopt;
  }
  return out;
}

// ceil(a / b). REQUIRES: b > 0.
inline constexpr uint64_t CeilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

// The smallest multiple of `unit` that is >= a. REQUIRES: unit > 0 and no overflow.
inline constexpr uint64_t RoundUp(uint64_t a, uint64_t unit) { return CeilDiv(a, unit) * unit; }

}  // namespace bitshard
