// How keys and values lie in the paged cache. One block holds 16 consecutive positions of one
// sequence for one layer.
//
// A layer's memory is [block][kv head]{K, K scales, V, V scales}, contiguous, 64-byte aligned,
// block b at b * block_bytes():
//   K: [head_dim][16 positions]   (a run of 16 keys is one vector: scores need no horizontal sum)
//   V: [16 positions][head_dim]
//   scales: [16 positions] f32, of the 8-bit types only, right behind their plane
// Elements are of the cache type; K and V are rounded to it once, when appended (what the codes
// and scales mean: kernels/registry/attention_codes.h). Position p of a sequence is in its block
// table's entry p / 16 at p % 16. What lies beyond a sequence's end, in its last block or in freed
// ones, is never used, whatever it is. With heads of a multiple of 4 every plane and every run of
// scales begins on a cache line of 64 bytes.
#pragma once

#include <cstdint>

namespace bitshard {

enum class KvType { kBf16, kF32, kF16, kInt8, kFp8E4m3 };
inline constexpr KvType kAllKvTypes[] = {KvType::kBf16, KvType::kF32, KvType::kF16, KvType::kInt8,
                                         KvType::kFp8E4m3};

inline constexpr int kKvBlockTokens = 16;
inline constexpr int kKvChunkTokens = 256;  // attention's unit of summation, at absolute multiples
inline constexpr int kKvScaleBytes = 4;

// As --kv-cache-dtype spells it.
inline constexpr const char* KvTypeName(KvType type) {
  switch (type) {
    case KvType::kBf16:
      return "bf16";
    case KvType::kF32:
      return "f32";
    case KvType::kF16:
      return "f16";
    case KvType::kInt8:
      return "int8";
    case KvType::kFp8E4m3:
      return "fp8_e4m3";
  }
  return "?";
}

inline constexpr int KvElementBytes(KvType type) {
  return type == KvType::kF32 ? 4 : type == KvType::kInt8 || type == KvType::kFp8E4m3 ? 1 : 2;
}
inline constexpr bool KvHasScales(KvType type) { return KvElementBytes(type) == 1; }

struct KvLayout {
  KvType type = KvType::kBf16;
  int kv_heads = 0;  // this rank's
  int head_dim = 0;

  // K or V of one head.
  int64_t plane_bytes() const { return int64_t{kKvBlockTokens} * head_dim * KvElementBytes(type); }
  // Behind the plane.
  int64_t scale_bytes() const { return KvHasScales(type) ? kKvBlockTokens * kKvScaleBytes : 0; }
  int64_t head_bytes() const { return 2 * (plane_bytes() + scale_bytes()); }
  // Of one layer; a multiple of 32 bytes.
  int64_t block_bytes() const { return head_bytes() * kv_heads; }
  int64_t k_offset(int kv_head) const { return head_bytes() * kv_head; }
  int64_t v_offset(int kv_head) const { return k_offset(kv_head) + plane_bytes() + scale_bytes(); }
};

}  // namespace bitshard
