// P16x64-S tiles to bytes in AVX-512: kernels/tensor/p16x64.h, one tile (16 rows x 64 columns) at a
// time. Every vector holds 4 rows x 16 columns; row and column of a byte are the same for all
// widths.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa_region.h"

namespace bitshard {
namespace {

// Which bits of word `word` belong to virtual word `virtual_word` >= bits, for widths 5, 6, 7.
struct SparePiece {
  int count;  // 0: none
  int shift;  // to the right, so that they come to their place in the code
  int mask;   // of that place
};

constexpr SparePiece SparePieceOf(int bits, int virtual_word, int word) {
  const int spare = 8 - bits;
  const int first = (virtual_word - bits) * bits, last = first + bits;  // of the code's bits
  const int begin = word * spare > first ? word * spare : first;
  const int end = (word + 1) * spare < last ? (word + 1) * spare : last;
  if (begin >= end) return {0, 0, 0};
  const int place = begin - first;
  return {end - begin, bits + begin - word * spare - place, ((1 << (end - begin)) - 1) << place};
}

ISA_BEGIN_AVX512VNNI

// Bits of `a` where mask is set, of b elsewhere.
ISA_INLINE __m512i Choose(__m512i mask, __m512i a, __m512i b) {
  return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

template <int kBits, int kVirtual, int kWord>
ISA_INLINE void AddSpareBits(const __m512i words[kBits], __m512i& code) {
  if constexpr (kWord < kBits) {
    constexpr SparePiece kPiece = SparePieceOf(kBits, kVirtual, kWord);
    if constexpr (kPiece.count > 0) {
      const __m512i bits = _mm512_srli_epi16(words[kWord], kPiece.shift);
      constexpr bool kFirst = (kPiece.mask & 1) != 0;
      code = kFirst ? bits : Choose(_mm512_set1_epi8(static_cast<char>(kPiece.mask)), bits, code);
    }
    AddSpareBits<kBits, kVirtual, kWord + 1>(words, code);
  }
}

template <int kBits, int kVirtual>
ISA_INLINE __m512i VirtualWord(const __m512i words[kBits]) {
  __m512i code = _mm512_setzero_si512();
  if constexpr (kVirtual < kBits) {
    code = words[kVirtual];
  } else {
    AddSpareBits<kBits, kVirtual, 0>(words, code);
  }
  return _mm512_and_si512(code, _mm512_set1_epi8((1 << kBits) - 1));
}

// codes[run][0..3]: rows 0-3, 4-7, 8-11, 12-15 of a run of 16 columns.
template <int kBits>
ISA_INLINE void UnpackTile(const uint8_t* tile, __m512i codes[4][4]) {
  ISA_UNROLL
  for (int half = 0; half < 2; ++half) {
    __m512i words[kBits];
    ISA_UNROLL
    for (int w = 0; w < kBits; ++w) words[w] = _mm512_loadu_si512(tile + 128 * w + 64 * half);
    if constexpr (kBits == 8) {
      ISA_UNROLL
      for (int j = 0; j < 4; ++j) codes[j][half] = words[j], codes[j][2 + half] = words[4 + j];
    } else if constexpr (kBits >= 5) {
      codes[0][half] = VirtualWord<kBits, 0>(words);
      codes[1][half] = VirtualWord<kBits, 1>(words);
      codes[2][half] = VirtualWord<kBits, 2>(words);
      codes[3][half] = VirtualWord<kBits, 3>(words);
      codes[0][2 + half] = VirtualWord<kBits, 4>(words);
      codes[1][2 + half] = VirtualWord<kBits, 5>(words);
      codes[2][2 + half] = VirtualWord<kBits, 6>(words);
      codes[3][2 + half] = VirtualWord<kBits, 7>(words);
    } else if constexpr (kBits == 2) {
      const __m512i mask = _mm512_set1_epi8(3);
      ISA_UNROLL
      for (int j = 0; j < 4; ++j) {
        const __m512i word = words[j % 2];
        codes[j][half] = _mm512_and_si512(_mm512_srli_epi16(word, j / 2 * 2), mask);
        codes[j][2 + half] = _mm512_and_si512(_mm512_srli_epi16(word, 4 + j / 2 * 2), mask);
      }
    } else {
      const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1);
      ISA_UNROLL
      for (int j = 0; j < 4; ++j) {
        __m512i word;
        if constexpr (kBits == 4) {
          word = words[j];
        } else if (j < 3) {
          word = words[j];
        } else {  // the top bits of the nibbles of three words
          word = Choose(_mm512_set1_epi8(0x11), _mm512_srli_epi16(words[0], 3),
                        _mm512_srli_epi16(words[1], 2));
          word = Choose(_mm512_set1_epi8(0x44), _mm512_srli_epi16(words[2], 1), word);
        }
        codes[j][half] = _mm512_and_si512(word, mask);
        codes[j][2 + half] = _mm512_and_si512(_mm512_srli_epi16(word, 4), mask);
      }
    }
  }
}

// One run from rows to columns: columns[t] has the bytes 4 t..4 t + 3 (storage order) of all 16
// rows, rows in slot order (ScaleSlotOfRow).
ISA_INLINE void TransposeRun(const __m512i codes[4], __m512i columns[4]) {
  const __m512i ab_low = _mm512_unpacklo_epi32(codes[0], codes[1]);
  const __m512i ab_high = _mm512_unpackhi_epi32(codes[0], codes[1]);
  const __m512i cd_low = _mm512_unpacklo_epi32(codes[2], codes[3]);
  const __m512i cd_high = _mm512_unpackhi_epi32(codes[2], codes[3]);
  columns[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
  columns[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
  columns[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  columns[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

// Weights are read once, front to back: asks for part kPart of kParts of the tile that comes 4 KiB
// later, on a CPU that gains by it. Beyond the matrix it does nothing.
template <int kBits, int kPart = 0, int kParts = 1>
ISA_INLINE void PrefetchTile(const uint8_t* tile) {
  if (!kAsksForLinesAhead) return;
  ISA_UNROLL
  for (int line = 2 * kBits * kPart / kParts; line < 2 * kBits * (kPart + 1) / kParts; ++line)
    _mm_prefetch(reinterpret_cast<const char*>(tile) + 4096 + 64 * line, _MM_HINT_T0);
}

ISA_END

}  // namespace
}  // namespace bitshard
