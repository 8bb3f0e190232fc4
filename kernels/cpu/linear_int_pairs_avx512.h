// Many rows of x in 16 bits, with half the multiplications: Winograd's inner product (IEEE
// Transactions on Computers C-17, 1968). For two columns, a and b, of a cell
//
//     w_a q_a + w_b q_b = (q_a + w_b) (q_b + w_a) - q_a q_b - w_a w_b
//
// where the second product belongs to the row of x alone (pair_sums of activations.h) and the third
// to the row of W alone. vpdpwssd multiplies 16 rows of W x 2 pairs; hi and lo bytes would need two
// vpdpbusd for as many columns. In their place there are two additions of 16 bits, which cost
// nothing where they have pipes of their own (AddsBesideMultiplications). Sums wrap modulo 2^32,
// and the cell's integer, which fits, comes out the same.
//
// |q| <= 32639 and codes of up to 7 bits stay within 16 bits; those of 8 bits go in less 128, and
// 128 times the sum of q is added. Of 4 columns in storage order, 0 and 2 are a pair, 1 and 3.
//
// Blocks of 4 rows by 2 row tiles: 12 loads for 8 vpdpwssd and 16 additions. Of 2 x 4 and 2 x 2 the
// loads bound it, 4 x 4 spills. Four pipes are the bound: a cell of 32 columns, 8 rows and 16
// outputs has 64 vpdpwssd, 128 additions and 40 others, 116 cycles of Zen 4; in bytes it has 152.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_int_panel_avx512.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX512VNNI

ISA_INLINE void AddProductsOf16Bits(__m512i& sum, __m512i a, __m512i b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
}

struct Pairs {
  static constexpr int kTerms = 2;
  static constexpr bool kPairs = true;
  static constexpr int kBlockRows = 4, kBlockTiles = 2;
  static_assert(kBlockRows * kBlockTiles == kBlockSums && kPanelTiles % kBlockTiles == 0);

  struct alignas(64) Codes {
    // Of 4 columns the first two, and the last two, of 16 rows.
    int16_t columns[kStripTiles * kTileRuns][4][2][kBlockTiles][32];
    int32_t run_pairs[kStripTiles * kTileRuns][kBlockTiles][kTileRows];  // sums of w_a w_b
    int32_t start[kMaxCells][kBlockTiles][kTileRows];                    // less those of a cell
  };

  template <int kBits>
  static ISA_INLINE void StoreRun(const __m512i columns[4], int run, int tile, Codes& out) {
    // -1: a zero.
    const __m512i low = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
    const __m512i high = _mm512_broadcast_i32x4(
        _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));
    __m512i pairs = _mm512_setzero_si512();
    ISA_UNROLL
    for (int c = 0; c < 4; ++c) {
      __m512i first = _mm512_shuffle_epi8(columns[c], low);
      __m512i second = _mm512_shuffle_epi8(columns[c], high);
      if constexpr (kBits == 8) {
        first = _mm512_sub_epi16(first, _mm512_set1_epi16(kOffsetOf8Bits));
        second = _mm512_sub_epi16(second, _mm512_set1_epi16(kOffsetOf8Bits));
      }
      AddProductsOf16Bits(pairs, first, second);
      _mm512_store_si512(out.columns[run][c][0][tile], first);
      _mm512_store_si512(out.columns[run][c][1][tile], second);
    }
    _mm512_store_si512(out.run_pairs[run][tile], pairs);
  }

  static void FinishTile(const IntStrip& strip, int tile, Codes& out) {
    for (int c = 0; c < strip.cells; ++c) {
      const StripCell& cell = strip.cell[c];
      __m512i start = _mm512_setzero_si512();
      for (int j = 0; j < cell.runs; ++j) {
        start = _mm512_sub_epi32(start, _mm512_load_si512(out.run_pairs[cell.run + j][tile]));
      }
      _mm512_store_si512(out.start[c][tile], start);
    }
  }

  // Adds the strip to kRows rows of x by kTiles row tiles; `row` of x is `at` in the chunk.
  template <int kRows, int kTiles>
  static void RunStrip(const LinearArgs& args, const IntStrip& strip, int64_t row, int at,
                       int index, const Codes& unpacked, Panel& panel) {
    const int64_t stride = args.padded_cols;
    const int64_t first_col = strip.first_tile * kTileCols + strip.cell[0].run * kLaneCols;
    const int16_t* q[kRows];
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      q[i] = args.q + (row + i) * stride + first_col;
      // A register of its own: GCC would keep an index for every place of every row, in memory.
      asm("" : "+r"(q[i]));
    }
    const int16_t* codes = unpacked.columns[strip.cell[0].run][0][0][0];
    __m512 acc[kRows][kTiles];
    LoadSums<kRows, kTiles>(panel, at, index, acc);
    const CellTerms* terms = &panel.terms[at];
    int closed = 0;
    for (int c = 0; c < strip.cells; ++c) {
      const StripCell& cell = strip.cell[c];
      PrefetchSome(panel);
      __m512i sum[kRows][kTiles];
      ISA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        ISA_UNROLL
        for (int p = 0; p < kTiles; ++p) {
          sum[i][p] = _mm512_add_epi32(_mm512_load_si512(unpacked.start[c][p]),
                                       _mm512_set1_epi32(terms[i].start[c]));
        }
      }
      for (int j = 0; j < cell.runs; ++j) {
        ISA_UNROLL
        for (int t = 0; t < 4; ++t, codes += 2 * kBlockTiles * 32) {
          __m512i first[kTiles], second[kTiles];
          ISA_UNROLL
          for (int p = 0; p < kTiles; ++p) {
            first[p] = _mm512_load_si512(codes + 32 * p);
            second[p] = _mm512_load_si512(codes + 32 * (kBlockTiles + p));
          }
          ISA_UNROLL
          for (int i = 0; i < kRows; ++i) {
            const __m512i a = Broadcast4Bytes(q[i] + 4 * t);
            const __m512i b = Broadcast4Bytes(q[i] + 4 * t + 2);
            ISA_UNROLL
            for (int p = 0; p < kTiles; ++p) {
              AddProductsOf16Bits(sum[i][p], _mm512_add_epi16(second[p], a),
                                  _mm512_add_epi16(first[p], b));
            }
          }
        }
        ISA_UNROLL
        for (int i = 0; i < kRows; ++i) q[i] += kLaneCols;
      }
      AddCell<kRows, kTiles>(args, cell, c, at, 0, &closed, sum, acc, panel);
    }
    StoreSums<kRows, kTiles>(args, closed, at, index, acc, panel);
  }

  template <int kTiles>
  static ISA_INLINE void RunRows(const LinearArgs& args, const IntStrip& strip, int64_t row,
                                 int rows, int at, int index, const Codes& codes, Panel& panel) {
    switch (rows) {
      case 4:
        return RunStrip<4, kTiles>(args, strip, row, at, index, codes, panel);
      case 3:
        return RunStrip<3, kTiles>(args, strip, row, at, index, codes, panel);
      case 2:
        return RunStrip<2, kTiles>(args, strip, row, at, index, codes, panel);
      default:
        return RunStrip<1, kTiles>(args, strip, row, at, index, codes, panel);
    }
  }

  // Up to kBlockRows rows of x by `tiles` unpacked row tiles, those from `index` of the panel on.
  static void RunBlock(const LinearArgs& args, const IntStrip& strip, int64_t row, int rows, int at,
                       int index, int tiles, const Codes& codes, Panel& panel) {
    if (tiles == 2) return RunRows<2>(args, strip, row, rows, at, index, codes, panel);
    RunRows<1>(args, strip, row, rows, at, index, codes, panel);
  }
};

ISA_END

}  // namespace
}  // namespace bitshard
