// The codes of a P16x64-S tile (kernels/tensor/p16x64.h) as bytes, in the order in which the
// integer kernels add them up: 4 runs of 16 columns, each 8 vectors of 32 bytes. A vector is two
// rows of 16 columns in lane order; vector 4 h + 2 r + s holds rows 8 r + 4 s + 2 h and the next,
// so that the transposing addition of vectors 4 h .. 4 h + 3 gives slots 8 h .. 8 h + 7 of the
// scale plane.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_strips.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {
namespace {

constexpr int kRunBytes = kTileRows * kLaneCols;  // of one unpacked run

// Where row r of an unpacked run begins.
constexpr int UnpackedRow(int r) {
  return 32 * (4 * (r / 2 % 2) + 2 * (r / 8) + r / 4 % 2) + 16 * (r % 2);
}

ISA_BEGIN_AVX2

ISA_INLINE __m256i LoadVector(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
ISA_INLINE void StoreVector(uint8_t* p, __m256i v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v);
}

// Bits [from, from + count) of every byte, moved to bit `to`.
ISA_INLINE __m256i MoveBits(__m256i word, int from, int count, int to) {
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(((1 << count) - 1) << to));
  const __m256i moved =
      from >= to ? _mm256_srli_epi16(word, from - to) : _mm256_slli_epi16(word, to - from);
  return _mm256_and_si256(moved, mask);
}

// Virtual word 4 r + j of a tile, for the lanes that `words` holds.
template <int kBits>
ISA_INLINE __m256i VirtualWord(const __m256i words[kBits], int r, int j) {
  const int v = 4 * r + j;
  if (kBits == 8) return words[v];
  if (kBits == 2) return MoveBits(words[j % 2], 4 * r + 2 * (j / 2), 2, 0);
  if (kBits == 4) return MoveBits(words[j], 4 * r, 4, 0);
  if (kBits == 3) {
    if (j < 3) return MoveBits(words[j], 4 * r, 3, 0);
    return _mm256_or_si256(
        _mm256_or_si256(MoveBits(words[0], 4 * r + 3, 1, 0), MoveBits(words[1], 4 * r + 3, 1, 1)),
        MoveBits(words[2], 4 * r + 3, 1, 2));
  }
  if (v < kBits) return MoveBits(words[v], 0, kBits, 0);
  // Spare bits of the stored words, `spare` a word, counted from bit (v - kBits) * kBits on.
  constexpr int spare = 8 - kBits > 0 ? 8 - kBits : 1;
  __m256i code = _mm256_setzero_si256();
  ISA_UNROLL
  for (int w = 0; w < kBits; ++w) {
    const int first = (v - kBits) * kBits, begin = first > w * spare ? first : w * spare;
    const int last = first + kBits, end = last < (w + 1) * spare ? last : (w + 1) * spare;
    if (begin >= end) continue;
    code = _mm256_or_si256(
        code, MoveBits(words[w], kBits + begin - w * spare, end - begin, begin - first));
  }
  return code;
}

// 64 columns x 16 rows at `tile` into out[4 * kRunBytes].
template <int kBits>
ISA_INLINE void UnpackTile(const uint8_t* tile, uint8_t* out) {
  ISA_UNROLL
  for (int p = 0; p < 4; ++p) {
    __m256i words[kBits];
    ISA_UNROLL
    for (int w = 0; w < kBits; ++w) words[w] = LoadVector(tile + 128 * w + 32 * p);
    ISA_UNROLL
    for (int r = 0; r < 2; ++r) {
      ISA_UNROLL
      for (int j = 0; j < kTileRuns; ++j) {
        StoreVector(out + j * kRunBytes + UnpackedRow(8 * r + 2 * p),
                    VirtualWord<kBits>(words, r, j));
      }
    }
  }
}

// The same with codes of 16 bits, for both rows of a vector columns 0-7 in lane order, then 8-15:
// out[8 * kRunBytes].
template <int kBits>
ISA_INLINE void UnpackWideTile(const uint8_t* tile, uint8_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  ISA_UNROLL
  for (int p = 0; p < 4; ++p) {
    __m256i words[kBits];
    ISA_UNROLL
    for (int w = 0; w < kBits; ++w) words[w] = LoadVector(tile + 128 * w + 32 * p);
    ISA_UNROLL
    for (int r = 0; r < 2; ++r) {
      ISA_UNROLL
      for (int j = 0; j < kTileRuns; ++j) {
        const __m256i codes = VirtualWord<kBits>(words, r, j);
        uint8_t* wide = out + 2 * (j * kRunBytes + UnpackedRow(8 * r + 2 * p));
        StoreVector(wide, _mm256_unpacklo_epi8(codes, zero));
        StoreVector(wide + 32, _mm256_unpackhi_epi8(codes, zero));
      }
    }
  }
}

ISA_END

}  // namespace
}  // namespace bitshard
