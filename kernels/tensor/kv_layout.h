// How keys and values lie in the paged cache. One block holds 16 consecutive positions of one
// sequence for one layer.
//
// A layer's memory is [block][kv head]{K, V}, contiguous, 64-byte aligned, block b at b *
// block_bytes():
//   K: [head_dim][16 positions]   (a run of 16 keys is one vector: scores need no horizontal sum)
//   V: [16 positions][head_dim]
// Elements are of the cache type; K and V are rounded to it once, when appended. Position p of a
// sequence is in its block table's entry p / 16 at p % 16. What lies
// beyond a sequence's end, in its last block or in freed ones, is never used, whatever it is.
#pragma once

#include <cstdint>

namespace bitshard {

enum class KvType { kBf16, kF32, kF16 };

inline constexpr int kKvBlockTokens = 16;
inline constexpr int kKvChunkTokens = 256;  // attention's unit of summation, at absolute multiples

struct KvLayout {
  KvType type = KvType::kBf16;
  int kv_heads = 0;  // this rank's
  int head_dim = 0;

  int element_bytes() const { return type == KvType::kF32 ? 4 : 2; }
  int64_t plane_bytes() const {
    return int64_t{kKvBlockTokens} * head_dim * element_bytes();
  }  // K or V of one head
  // Of one layer; a multiple of 32 bytes.
  int64_t block_bytes() const { return 2 * plane_bytes() * kv_heads; }
  int64_t k_offset(int kv_head) const { return 2 * plane_bytes() * kv_head; }
  int64_t v_offset(int kv_head) const { return k_offset(kv_head) + plane_bytes(); }
};

}  // namespace bitshard
