// What ranks do with each other's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bitshard {

// to[i] += the i-th int64 of `from`, which need not be aligned.
// Unsigned, because sums may wrap; by eights of known count, because -O2 vectorizes nothing else.
inline void AddTo(int64_t* __restrict to, const uint8_t* __restrict from, size_t n) {
  const auto add = [&](size_t i) {
    uint64_t value;
    std::memcpy(&value, from + i * sizeof(value), sizeof(value));
    to[i] = static_cast<int64_t>(static_cast<uint64_t>(to[i]) + value);
  };
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t j = 0; j < 8; ++j) add(i + j);
  }
  for (; i < n; ++i) add(i);
}

inline void Copy(void* to, const void* from, size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

}  // namespace bitshard
