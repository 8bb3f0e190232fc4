// The order of the sampler as one number: tokens by logit descending, then by id ascending, are
// keys descending. REQUIRES everywhere: logits are not NaN. Minus zero counts as zero.
#pragma once

#include <bit>
#include <cstdint>

namespace bitshard {

// Order-preserving: a < b exactly when SortableLogit(a) < SortableLogit(b).
inline uint32_t SortableLogit(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);  // -0 + 0 = +0
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

inline float LogitOfSortable(uint32_t s) {
  return std::bit_cast<float>((s & 0x80000000u) != 0 ? s & 0x7fffffffu : ~s);
}

inline uint64_t TokenKey(float logit, uint32_t token) {
  return uint64_t{SortableLogit(logit)} << 32 | ~token;
}
inline uint32_t KeyToken(uint64_t key) { return ~static_cast<uint32_t>(key); }
inline float KeyLogit(uint64_t key) { return LogitOfSortable(static_cast<uint32_t>(key >> 32)); }

}  // namespace bitshard
