// The numbers of synthetic weights, one by one: what synthetic.h fills matrices with and what
// kernels/cuda/synthetic.cu fills them with on a device. Integer arithmetic only, so that every
// machine makes the same bits.
#pragma once

#include <cstdint>

#include "kernels/tensor/scale_plane.h"

namespace bitshard {

// A slice of a synthetic weight. Every number is a function of the key, which stands for the seed
// and the weight's name, and of its row and column in the whole weight.
struct SyntheticSource {
  uint64_t key = 0;
  uint64_t row_begin = 0, col_begin = 0;  // where the slice begins in the whole
  // Of scales, or of the values of dense types: 2^exponent * [1, 2). In two-level kinds of d; in
  // kE4m3 of what the factor multiplies; in kNested of the second level.
  int exponent = 0;
  int min_exponent = 0;  // of minima; in two-level kinds of dmin
  bool centred = false;  // SyntheticCentred
};

// 64 bits of a place: the output of SplitMix64 for this counter.
constexpr uint64_t SyntheticBits(uint64_t key, uint64_t row, uint64_t place) {
  uint64_t x = key + (row << 32 | place) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The codes of columns [8 octet, 8 octet + 8), one a byte, the first in the lowest: uniform.
constexpr uint64_t SyntheticCodes(uint64_t key, uint64_t row, uint64_t octet, int bits) {
  const uint64_t mask = ((1u << bits) - 1) * 0x0101010101010101u;
  return SyntheticBits(key, row, octet) >> (8 - bits) & mask;
}

// The codes of weights whose scales have no signs of their own: as often above 2^(bits - 1) as
// below, never 0.
constexpr uint32_t SyntheticCentred(uint32_t code, int bits) {
  return code == 0 ? 1u << (bits - 1) : code;
}

// What a group of a row has; of a super-block, whose index stands for the group's, `scale` alone.
// The sign makes the values' mean zero, which that of codes around 2^(bits - 1) is not.
struct SyntheticGroup {
  uint32_t scale = 0, min = 0;  // draws, for SyntheticBf16 and its like
  uint32_t sub = 0;             // 16 bits: sub-scales, an index into a table
  uint32_t zero = 0;            // 2^(bits - 2) .. 3 * 2^(bits - 2) - 1
};
constexpr SyntheticGroup SyntheticGroupOf(uint64_t key, uint64_t row, uint64_t group, int bits) {
  const uint64_t x = SyntheticBits(~key, row, group);
  const uint32_t zero =
      (1u << (bits - 2)) + (static_cast<uint32_t>(x >> 16) & ((2u << (bits - 2)) - 1));
  return {static_cast<uint32_t>(x & 0xffff), static_cast<uint32_t>(x >> 32 & 0x7fff),
          static_cast<uint32_t>(x >> 48), zero};
}

// A value of a dense type: 16 bits of `four`, which is SyntheticBits(key, row, col / 4).
constexpr uint32_t SyntheticDraw(uint64_t four, uint64_t col) {
  return static_cast<uint32_t>(four >> (col % 4 * 16) & 0xffff);
}

// A draw as +-2^exponent * (1 + m / 128): the same number in every type. REQUIRES: in f16 an
// exponent of kLeastSyntheticF16 or more, whose numbers are subnormal and exact.
inline constexpr int kLeastSyntheticF16 = -17;
constexpr uint16_t SyntheticBf16(uint32_t draw, int exponent) {
  return static_cast<uint16_t>((draw & 0x8000u) | static_cast<uint32_t>(exponent + 127) << 7 |
                               (draw & 0x7fu));
}
constexpr uint16_t SyntheticF16(uint32_t draw, int exponent) {
  const uint32_t size = exponent >= -14
                            ? static_cast<uint32_t>(exponent + 15) << 10 | (draw & 0x7fu) << 3
                            : (0x80u | (draw & 0x7fu)) << (exponent - kLeastSyntheticF16);
  return static_cast<uint16_t>((draw & 0x8000u) | size);
}
constexpr uint32_t SyntheticF32(uint32_t draw, int exponent) {
  return uint32_t{SyntheticBf16(draw, exponent)} << 16;
}
// +-2^exponent * (1 + m / 8), of fewer m below 2^-6. REQUIRES: -9 <= exponent <= 7.
constexpr uint32_t SyntheticE4m3(uint32_t draw, int exponent) {
  const uint32_t m = draw & 7u;
  const uint32_t size =
      exponent >= -6 ? static_cast<uint32_t>(exponent + 7) << 3 | m : (8 + m) >> (-6 - exponent);
  return (draw >> 8 & 0x80u) | size;
}
// kF32, kF16 or kBf16.
constexpr uint32_t SyntheticFloat(ScaleKind kind, uint32_t draw, int exponent) {
  if (kind == ScaleKind::kF32) return SyntheticF32(draw, exponent);
  return kind == ScaleKind::kF16 ? SyntheticF16(draw, exponent) : SyntheticBf16(draw, exponent);
}

// What the plane has for a group, in the low ScaleBytes(kind); in kSuperU8Min the scale's byte.
// Sub-scales: 16 .. 47 in size, those of four bits 4 .. 11.
constexpr uint32_t SyntheticScale(ScaleKind kind, const SyntheticGroup& group, int exponent) {
  const uint32_t size = 16 + (group.sub & 31u);
  switch (kind) {
    case ScaleKind::kE8m0:
      return static_cast<uint32_t>(exponent + 127) + (group.scale & 1u);
    case ScaleKind::kE4m3:
      return SyntheticE4m3(group.scale, exponent);
    case ScaleKind::kNested:
      return group.sub & 0xffu;
    case ScaleKind::kSuperS8:
      return (group.sub & 0x8000u) != 0 ? 0x100u - size : size;
    case ScaleKind::kSuperU8Min:
      return size;
    case ScaleKind::kSuperU4Min:
      return (4 + (group.sub & 7u)) | (4 + (group.sub >> 5 & 7u)) << 4;
    default:
      return SyntheticFloat(kind, group.scale, exponent);
  }
}
// kSuperU8Min's other byte.
constexpr uint32_t SyntheticSubMin(const SyntheticGroup& group) {
  return 16 + (group.sub >> 5 & 31u);
}
// ScaleOffset::kMin: of the other sign than the scale.
constexpr uint16_t SyntheticMin(ScaleKind kind, const SyntheticGroup& group, int min_exponent) {
  const bool negative = kind == ScaleKind::kNested
                            ? (group.sub & 0x80u) != 0
                            : kind != ScaleKind::kE8m0 && (group.scale & 0x8000u) != 0;
  return SyntheticF16(group.min | (negative ? 0u : 0x8000u), min_exponent);
}

// kNested, as f32: table[i], +-[1, 9/8), the second half negative; second[block / 256], of the
// blocks of the whole.
constexpr uint32_t SyntheticNestedTable(uint64_t key, uint32_t i) {
  const uint64_t x = SyntheticBits(key ^ 0x5555555555555555u, 0, i);
  return (i & 0x80u) << 24 | 0x3f800000u | static_cast<uint32_t>(x & 0xfffff);
}
constexpr uint32_t SyntheticNestedSecond(uint64_t key, uint64_t block, int exponent) {
  const uint64_t x = SyntheticBits(key ^ 0xaaaaaaaaaaaaaaaau, block >> 32, block & 0xffffffffu);
  return SyntheticF32(static_cast<uint32_t>(x & 0x7f), exponent);
}

// The group of the whole weight that a slice's group 0 is; in two-level kinds the first of its
// super-block.
constexpr uint64_t SyntheticFirstGroup(ScaleKind kind, uint64_t col_begin, uint64_t group_size) {
  const uint64_t period = IsSuper(kind) ? kSuperBlockCols : group_size;
  return col_begin / period * (period / group_size);
}

}  // namespace bitshard
