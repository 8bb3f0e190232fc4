// Many rows of x, one or two signed bytes a column: vpdpbusd multiplies 16 rows of W x 4 columns by
// the bytes of a row of x. Blocks of 2 rows by 4 row tiles.
//
// 2 x 4 and not 4 x 2: 8 loads for 16 vpdpbusd instead of 10. Pointers that run along instead of
// addresses made anew save GCC spills (2 % of the time). Multiplications bound it: a cell of 32
// columns, 8 rows and 16 outputs has 128 vpdpbusd and 24 other multiplications, 2 of either a
// cycle.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_int_panel_avx512.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX512VNNI

// In place: the compiler would shift 24 accumulators around.
ISA_INLINE void AddDot(__m512i& sum, __m512i codes, __m512i terms) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(terms));
}

template <int kTermsOfColumn>
struct Bytes {
  static constexpr int kTerms = kTermsOfColumn;
  static constexpr bool kPairs = false;
  static constexpr int kBlockRows = 2, kBlockTiles = 4;
  static_assert(kBlockRows * kBlockTiles == kBlockSums && kPanelTiles % kBlockTiles == 0);

  struct alignas(64) Codes {
    uint8_t columns[kStripTiles * kTileRuns][4][kBlockTiles][64];
  };

  template <int kBits>
  static ISA_INLINE void StoreRun(const __m512i columns[4], int run, int tile, Codes& out) {
    ISA_UNROLL
    for (int c = 0; c < 4; ++c) _mm512_store_si512(out.columns[run][c][tile], columns[c]);
  }
  static void FinishTile(const IntStrip&, int, Codes&) {}

  // Adds the strip to kRows rows of x by kTiles row tiles, `first` and on of those that are
  // unpacked; `row` of x is `at` in the chunk.
  template <int kRows, int kTiles>
  static void RunStrip(const LinearArgs& args, const IntStrip& strip, int64_t row, int at,
                       int index, int first, const Codes& unpacked, Panel& panel) {
    const bool has_zero = args.scale.zero_point != 0 && !args.scale.has_zeros;
    const int64_t stride = args.padded_cols;
    const int64_t first_col = strip.first_tile * kTileCols + strip.cell[0].run * kLaneCols;
    const int8_t* terms = FirstTerms<kTerms>(args) + row * stride + first_col;
    const int8_t* terms_lo = kTerms == 2 ? args.lo + row * stride + first_col : nullptr;
    const uint8_t* codes = unpacked.columns[strip.cell[0].run][0][first];
    __m512 acc[kRows][kTiles];
    LoadSums<kRows, kTiles>(panel, at, index + first, acc);
    int closed = 0;
    for (int c = 0; c < strip.cells; ++c) {
      const StripCell& cell = strip.cell[c];
      PrefetchSome(panel);
      __m512i sum[kRows][kTiles], low[kRows][kTiles];
      ISA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        ISA_UNROLL
        for (int p = 0; p < kTiles; ++p) sum[i][p] = low[i][p] = _mm512_setzero_si512();
      }
      for (int j = 0; j < cell.runs;
           ++j, codes += 256 * kBlockTiles, terms += kLaneCols, terms_lo += kLaneCols) {
        ISA_UNROLL
        for (int t = 0; t < 4; ++t) {
          __m512i w[kTiles];
          ISA_UNROLL
          for (int p = 0; p < kTiles; ++p)
            w[p] = _mm512_load_si512(codes + 64 * kBlockTiles * t + 64 * p);
          ISA_UNROLL
          for (int i = 0; i < kRows; ++i) {
            const __m512i q = Broadcast4Bytes(terms + i * stride + 4 * t);
            ISA_UNROLL
            for (int p = 0; p < kTiles; ++p) AddDot(sum[i][p], w[p], q);
            if constexpr (kTerms == 2) {
              const __m512i q_lo = Broadcast4Bytes(terms_lo + i * stride + 4 * t);
              ISA_UNROLL
              for (int p = 0; p < kTiles; ++p) AddDot(low[i][p], w[p], q_lo);
            }
          }
        }
      }
      ISA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        ISA_UNROLL
        for (int p = 0; p < kTiles; ++p) {
          if constexpr (kTerms == 2)
            sum[i][p] = _mm512_add_epi32(_mm512_slli_epi32(sum[i][p], 8), low[i][p]);
        }
        if (!has_zero) continue;
        const __m512i term = _mm512_set1_epi32(panel.terms[at + i].zero_term[c]);
        ISA_UNROLL
        for (int p = 0; p < kTiles; ++p) sum[i][p] = _mm512_add_epi32(sum[i][p], term);
      }
      AddCell<kRows, kTiles>(args, cell, c, at, first, &closed, sum, acc, panel);
    }
    StoreSums<kRows, kTiles>(args, closed, at, index + first, acc, panel);
  }

  template <int kTiles>
  static ISA_INLINE void RunRows(const LinearArgs& args, const IntStrip& strip, int64_t row,
                                 int rows, int at, int index, int first, const Codes& codes,
                                 Panel& panel) {
    if (rows == 1) return RunStrip<1, kTiles>(args, strip, row, at, index, first, codes, panel);
    RunStrip<2, kTiles>(args, strip, row, at, index, first, codes, panel);
  }

  // Up to kBlockRows rows of x by `tiles` unpacked row tiles, those from `index` of the panel on.
  static void RunBlock(const LinearArgs& args, const IntStrip& strip, int64_t row, int rows, int at,
                       int index, int tiles, const Codes& codes, Panel& panel) {
    if (tiles == 4) return RunRows<4>(args, strip, row, rows, at, index, 0, codes, panel);
    if (tiles >= 2) RunRows<2>(args, strip, row, rows, at, index, 0, codes, panel);
    if (tiles % 2 == 1) RunRows<1>(args, strip, row, rows, at, index, tiles - 1, codes, panel);
  }
};

ISA_END

}  // namespace
}  // namespace bitshard
