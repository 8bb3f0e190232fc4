// A few rows of x: codes go from memory through registers, and all rows use them there. A vector
// has 4 rows of W x 16 columns; vpdpbusd sums 4 columns, a transposing addition the rest. For
// matrices of equal cells (EqualCellRuns).
#pragma once

#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_int_cells_avx512.h"
#include "kernels/cpu/linear_store_avx512.h"
#include "kernels/cpu/scale_plane_avx512.h"
#include "kernels/cpu/unpack_avx512.h"

namespace bitshard {
namespace {

ISA_BEGIN_AVX512VNNI

template <int kRuns>
ISA_INLINE void AddProducts(const int8_t* terms, const __m512i codes[kRuns][4], __m512i dot[4]) {
  ISA_UNROLL
  for (int j = 0; j < kRuns; ++j) {
    const __m512i x =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(terms + 16 * j)));
    ISA_UNROLL
    for (int i = 0; i < 4; ++i) dot[i] = _mm512_dpbusd_epi32(dot[i], codes[j][i], x);
  }
}

// Adds what is left across a vector: the 4 columns' sums of rows 0-3, 4-7, 8-11, 12-15; slot order.
ISA_INLINE __m512i SumOfFour(const __m512i dot[4]) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(dot[0], dot[1]),
                                      _mm512_unpackhi_epi32(dot[0], dot[1]));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(dot[2], dot[3]),
                                      _mm512_unpackhi_epi32(dot[2], dot[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

// kRows rows of x, one row tile. Batches of kStripTiles tiles, so that no call comes between the
// cells.
template <int kBits, int kTerms, int kCellRuns, int kRows>
void RunRowsOfTile(const LinearArgs& args, int64_t tile, int64_t row) {
  constexpr int kCells = kTileRuns / kCellRuns;
  const ScaleView& view = args.scale;
  const bool has_min = view.has_min, has_zeros = view.has_zeros, has_zero = view.zero_point != 0;
  const int64_t stride = args.padded_cols;
  const int8_t* x = FirstTerms<kTerms>(args) + row * stride;
  const int8_t* x_lo = kTerms == 2 ? args.lo + row * stride : nullptr;
  const uint8_t* word = args.codes + tile * args.tile_bytes;
  const int64_t tiles = (args.k + kTileCols - 1) / kTileCols;
  // One segment may end inside a tile; of several, all but the last are whole tiles.
  const int64_t segment_tiles = args.segments > 1 ? args.segment_cols / kTileCols : tiles;
  int64_t segment_left = segment_tiles;
  GroupNumbers numbers[kMaxCells];
  CellTerms terms[kRows];
  int64_t group = 0, group_cells = INT64_MAX, cells_left = INT64_MAX;  // of `group`
  if (view.groups > 1) {
    group_cells = view.group_size / (kCellRuns * kLaneCols);
    const int64_t skipped = view.first_group_offset / (kCellRuns * kLaneCols);
    group = skipped / group_cells;
    cells_left = group_cells - skipped % group_cells;
  }
  __m512 acc[kRows];
  __m512i low[kRows], high[kRows];
  int64_t poison[kRows];
  ISA_UNROLL
  for (int i = 0; i < kRows; ++i) {
    acc[i] = _mm512_setzero_ps();
    low[i] = high[i] = _mm512_setzero_si512();
    poison[i] = 0;
  }
  for (int64_t first = 0; first < tiles; first += kStripTiles) {
    const int batch = static_cast<int>(tiles - first < kStripTiles ? tiles - first : kStripTiles);
    const int64_t runs_left = (args.k + kLaneCols - 1) / kLaneCols - first * kTileRuns;
    int cells = static_cast<int>((runs_left + kCellRuns - 1) / kCellRuns);
    if (cells > batch * kCells) cells = batch * kCells;
    int64_t groups = 1;
    if (cells > cells_left) groups += (cells - cells_left + group_cells - 1) / group_cells;
    LoadGroups(view, tile, group, static_cast<int>(groups), numbers);
    PrepareEqualCells<kTerms>(args, first, batch, kCellRuns, row, kRows, terms);
    const GroupNumbers* of_cell = numbers;
    for (int t = 0; t < batch; ++t, word += 128 * kBits, x += kTileCols, x_lo += kTileCols) {
      __m512i codes[kTileRuns][4];
      UnpackTile<kBits>(word, codes);
      ISA_UNROLL
      for (int c = 0; c < kCells; ++c) {
        const int cell = t * kCells + c;
        if (c == 0) PrefetchTile<kBits, 0, kCells>(word);
        if (c == 1) PrefetchTile<kBits, 1, kCells>(word);
        if (c == 2) PrefetchTile<kBits, 2, kCells>(word);
        if (c == 3) PrefetchTile<kBits, 3, kCells>(word);
        if (c > 0 && cell >= cells) break;
        if (cells_left == 0) {
          ++group, ++of_cell;
          cells_left = group_cells;
        }
        --cells_left;
        const __m512 s_w = _mm512_load_ps(of_cell->scale);
        ISA_UNROLL
        for (int i = 0; i < kRows; ++i) {
          __m512i dot[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                            _mm512_setzero_si512()};
          const int64_t at = i * stride + c * (kCellRuns * kLaneCols);
          AddProducts<kCellRuns>(x + at, &codes[c * kCellRuns], dot);
          if constexpr (kTerms == 2) {
            ISA_UNROLL
            for (int v = 0; v < 4; ++v) dot[v] = _mm512_slli_epi32(dot[v], 8);
            AddProducts<kCellRuns>(x_lo + at, &codes[c * kCellRuns], dot);
          }
          __m512i sum = SumOfFour(dot);
          if (has_zero) {
            sum = _mm512_add_epi32(sum, _mm512_set1_epi32(terms[i].zero_term[cell]));
          } else if (has_zeros) {
            sum = _mm512_sub_epi32(sum,
                                   _mm512_mullo_epi32(_mm512_load_si512(of_cell->zero),
                                                      _mm512_set1_epi32(terms[i].zero_term[cell])));
          }
          acc[i] =
              _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum),
                              _mm512_mul_ps(s_w, _mm512_set1_ps(terms[i].act_scale[cell])), acc[i]);
          if (has_min) {
            acc[i] = _mm512_fmadd_ps(_mm512_load_ps(of_cell->min),
                                     _mm512_set1_ps(terms[i].min_factor[cell]), acc[i]);
          }
        }
      }
      if (args.sums == nullptr || (--segment_left > 0 && first + t + 1 < tiles)) continue;
      segment_left = segment_tiles;
      ISA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        __m512i fixed_low, fixed_high;
        if (__builtin_expect(Poisons(Magnitude(acc[i]), args.limit) != 0, 0)) {
          poison[i] +=
              ToFixed(acc[i], args.limit, SlotsOfTile(args, tile), &fixed_low, &fixed_high);
        } else {
          GoodToFixed(acc[i], &fixed_low, &fixed_high);
        }
        low[i] = _mm512_add_epi64(low[i], fixed_low);
        high[i] = _mm512_add_epi64(high[i], fixed_high);
        acc[i] = _mm512_setzero_ps();
      }
    }
    if (cells_left == 0) {
      ++group;
      cells_left = group_cells;
    }
  }
  ISA_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (args.sums != nullptr) {
      StoreSlotSums(args, tile, row + i, low[i], high[i]);
      AddPoison(args, row + i, poison[i]);
    } else {
      StoreSlots(args, tile, row + i, acc[i]);
    }
  }
}

// All rows of x: a row tile's codes come from memory for the first rows and from the cache for the
// others.
template <int kBits, int kTerms, int kCellRuns>
void RunTile(const LinearArgs& args, int64_t tile) {
  int64_t row = 0;
  for (; row + 4 <= args.m; row += 4) RunRowsOfTile<kBits, kTerms, kCellRuns, 4>(args, tile, row);
  if (row + 2 <= args.m) {
    RunRowsOfTile<kBits, kTerms, kCellRuns, 2>(args, tile, row);
    row += 2;
  }
  if (row < args.m) RunRowsOfTile<kBits, kTerms, kCellRuns, 1>(args, tile, row);
}

ISA_END

}  // namespace
}  // namespace bitshard
