// The numbers of synthetic weights, one by one: what synthetic.h fills matrices with and what
// kernels/cuda/synthetic.cu fills them with on a device. Integer arithmetic only, so that every
// machine makes the same bits.
#pragma once

#include <cstdint>

namespace bitshard {

// A slice of a synthetic weight. Every number is a function of the key, which stands for the seed
// and the weight's name, and of its row and column in the whole weight.
struct SyntheticSource {
  uint64_t key = 0;
  uint64_t row_begin = 0, col_begin = 0;  // where the slice begins in the whole
  int exponent = 0;  // of scales, or of the values of dense types: 2^exponent * [1, 2)
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

// What a group of a row has. The sign makes the values' mean zero, which that of codes around
// 2^(bits - 1) is not.
struct SyntheticGroup {
  uint32_t draw = 0;  // for SyntheticBf16 and its like
  uint32_t zero = 0;  // 2^(bits - 2) .. 3 * 2^(bits - 2) - 1
};
constexpr SyntheticGroup SyntheticGroupOf(uint64_t key, uint64_t row, uint64_t group, int bits) {
  const uint64_t x = SyntheticBits(~key, row, group);
  const uint32_t zero =
      (1u << (bits - 2)) + (static_cast<uint32_t>(x >> 16) & ((2u << (bits - 2)) - 1));
  return {static_cast<uint32_t>(x & 0xffff), zero};
}

// A value of a dense type: 16 bits of `four`, which is SyntheticBits(key, row, col / 4).
constexpr uint32_t SyntheticDraw(uint64_t four, uint64_t col) {
  return static_cast<uint32_t>(four >> (col % 4 * 16) & 0xffff);
}

// A draw as +-2^exponent * (1 + m / 128): the same number in every type. REQUIRES: normal in f16,
// where it is f16.
constexpr uint16_t SyntheticBf16(uint32_t draw, int exponent) {
  return static_cast<uint16_t>((draw & 0x8000u) | static_cast<uint32_t>(exponent + 127) << 7 |
                               (draw & 0x7fu));
}
constexpr uint16_t SyntheticF16(uint32_t draw, int exponent) {
  return static_cast<uint16_t>((draw & 0x8000u) | static_cast<uint32_t>(exponent + 15) << 10 |
                               (draw & 0x7fu) << 3);
}
constexpr uint32_t SyntheticF32(uint32_t draw, int exponent) {
  return uint32_t{SyntheticBf16(draw, exponent)} << 16;
}

}  // namespace bitshard
