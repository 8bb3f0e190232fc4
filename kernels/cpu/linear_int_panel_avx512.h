// Many rows of x: strips of 256 columns of up to 4 row tiles are unpacked once into L1, turned so
// that a vector has 16 rows of W x 4 columns; blocks of up to 2 rows of x by 4 row tiles keep their
// cells and sums in registers, and nothing is left to add across a vector. For any cells.
//
// 2 x 4 and not 4 x 2: 8 loads for 16 vpdpbusd instead of 10. Pointers that run along instead of
// addresses made anew save GCC spills (2 % of the time). Multiplications bound it: a cell of 32
// columns, 8 rows and 16 outputs has 128 vpdpbusd and 24 other multiplications, 2 of either a
// cycle.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_int_cells_avx512.h"
#include "kernels/cpu/linear_store_avx512.h"
#include "kernels/cpu/scale_plane_avx512.h"
#include "kernels/cpu/unpack_avx512.h"

namespace bitshard {
namespace {

struct alignas(64) Panel {
  uint8_t codes[kStripTiles * kTileRuns][4][kPanelTiles][64];
  GroupNumbers numbers[kPanelTiles][kMaxCells];
  CellTerms terms[kChunkRows];  // of the cells of the strip, for the rows of x at hand
  float acc[kChunkRows][kPanelTiles][kTileRows];  // of a segment that goes on in the next strip
  float closed[kMaxCells][kBlockRows][kPanelTiles][kTileRows];  // segments that ended in the strip
  int64_t sums[kChunkRows][kPanelTiles][kTileRows];
  int64_t poison[kChunkRows];
  unsigned slots[kPanelTiles];            // those of real rows
  const char* range[2 * kPanelTiles][2];  // what is left to prefetch, [begin, end)
  int ranges, next_range, lines_a_cell;
};

ISA_BEGIN_AVX512VNNI

ISA_INLINE __m512i BroadcastTerms(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return _mm512_set1_epi32(four);
}

// In place: the compiler would shift 24 accumulators around.
ISA_INLINE void AddDot(__m512i& sum, __m512i codes, __m512i terms) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(codes), "v"(terms));
}

// Codes and group numbers of one row tile, `index` in the panel.
template <int kBits>
void UnpackStrip(const LinearArgs& args, const IntStrip& strip, int64_t tile, int index,
                 Panel& panel) {
  const uint8_t* word = args.codes + tile * args.tile_bytes + strip.first_tile * (128 * kBits);
  for (int t = 0; t < strip.tiles; ++t) {
    __m512i codes[kTileRuns][4];
    UnpackTile<kBits>(word + t * (128 * kBits), codes);
    ISA_UNROLL
    for (int j = 0; j < kTileRuns; ++j) {
      __m512i columns[4];
      TransposeRun(codes[j], columns);
      ISA_UNROLL
      for (int c = 0; c < 4; ++c) {
        _mm512_store_si512(panel.codes[t * kTileRuns + j][c][index], columns[c]);
      }
    }
  }
  GroupNumbers* numbers = panel.numbers[index];
  for (int c = 0; c < strip.cells;) {
    const int64_t group = strip.cell[c].group;
    if (c > 0 && group == strip.cell[c - 1].group) {
      numbers[c] = numbers[c - 1];
      ++c;
      continue;
    }
    int count = 1;
    while (c + count < strip.cells && strip.cell[c + count].group == group + count) ++count;
    LoadGroups(args.scale, tile, group, count, &numbers[c]);
    c += count;
  }
}

// What any cells need of some rows of x.
void PrepareRows(const LinearArgs& args, const IntStrip& strip, int64_t row, int rows,
                 Panel& panel) {
  const bool sums = args.scale.has_min || args.scale.has_zeros || args.scale.zero_point != 0;
  const int32_t factor = args.scale.has_zeros ? 1 : -args.scale.zero_point;
  for (int i = 0; i < rows; ++i) {
    const float* scales = args.act_scales + (row + i) * args.act_groups;
    const int32_t* run_sums =
        args.run_sums + (row + i) * (args.padded_cols / kLaneCols) + strip.first_tile * kTileRuns;
    for (int c = 0; c < strip.cells; ++c) {
      const StripCell& cell = strip.cell[c];
      const float s_a = scales[cell.act_group];
      panel.terms[i].act_scale[c] = s_a;
      if (!sums) continue;
      int32_t q_sum = 0;
      for (int j = 0; j < cell.runs; ++j) q_sum += run_sums[cell.run + j];
      panel.terms[i].zero_term[c] = q_sum * factor;
      panel.terms[i].min_factor[c] = s_a * static_cast<float>(q_sum);
    }
  }
}

// Plans what follows in memory: the codes and scales of the next strip or, after the last, of the
// first strip of the next panel; `cells` will be worked on until then.
void PlanPrefetch(const LinearArgs& args, const IntStrip& strip, int64_t tile, int tiles, int cells,
                  Panel& panel) {
  const int64_t k_tiles = (args.k + kTileCols - 1) / kTileCols;
  const int64_t first = strip.last ? 0 : strip.first_tile + strip.tiles;
  const int64_t count = k_tiles - first < kStripTiles ? k_tiles - first : kStripTiles;
  if (strip.last) tile += tiles;
  const int64_t code_bytes = 128 * args.bits, scale_bytes = args.scale.tile_bytes;
  const int64_t scale_begin = scale_bytes * first / k_tiles;
  const int64_t scale_end = scale_bytes * (first + count) / k_tiles;
  panel.next_range = panel.ranges = 0;
  for (int t = 0; t < tiles; ++t) {
    const char* codes = reinterpret_cast<const char*>(args.codes) + (tile + t) * args.tile_bytes;
    const char* scales = reinterpret_cast<const char*>(args.scale.plane) + (tile + t) * scale_bytes;
    const char* ranges[2][2] = {{codes + first * code_bytes, codes + (first + count) * code_bytes},
                                {scales + scale_begin, scales + scale_end}};
    for (const auto& range : ranges) {
      if (range[0] >= range[1]) continue;
      panel.range[panel.ranges][0] = range[0];
      panel.range[panel.ranges++][1] = range[1];
    }
  }
  const int64_t lines = tiles * (count * code_bytes + scale_end - scale_begin + 126) / 64;
  // A cell asks for lines of one range: as many cells as ranges may ask for less than the others.
  const int64_t full_cells = cells > panel.ranges ? cells - panel.ranges : 1;
  panel.lines_a_cell = static_cast<int>((lines + full_cells - 1) / full_cells);
}

// A few lines at a time: the same requests in one burst a block gained nothing, measured from
// memory on Zen 5 (16 rows, 4 bits: 143 us in bursts, 109 us spread).
ISA_INLINE void PrefetchSome(Panel& panel) {
  if (panel.next_range == panel.ranges) return;
  const char** range = panel.range[panel.next_range];
  const char* line = range[0];
  for (int i = 0; i < panel.lines_a_cell; ++i, line += 64) _mm_prefetch(line, _MM_HINT_T0);
  range[0] = line;
  if (line >= range[1]) ++panel.next_range;
}

// Adds the segments that ended in the strip to the sums of kRows rows of x by kTiles row tiles: all
// at once, so that no sum is loaded just after it was stored.
template <int kRows, int kTiles>
ISA_INLINE void AddClosed(const LinearArgs& args, int segments, int at, int index, Panel& panel) {
  ISA_UNROLL
  for (int i = 0; i < kRows; ++i) {
    ISA_UNROLL
    for (int p = 0; p < kTiles; ++p) {
      int64_t* sums = panel.sums[at + i][index + p];
      __m512i largest = _mm512_setzero_si512();
      __m512i low = _mm512_load_si512(sums), high = _mm512_load_si512(sums + 8);
      for (int s = 0; s < segments; ++s) {
        const __m512 value = _mm512_load_ps(panel.closed[s][i][p]);
        __m512i fixed_low, fixed_high;
        largest = _mm512_max_epu32(largest, Magnitude(value));
        GoodToFixed(value, &fixed_low, &fixed_high);
        low = _mm512_add_epi64(low, fixed_low);
        high = _mm512_add_epi64(high, fixed_high);
      }
      if (__builtin_expect(Poisons(largest, args.limit) != 0, 0)) {  // again, with care
        for (int s = 0; s < segments; ++s) {
          panel.poison[at + i] += AddSegment(_mm512_load_ps(panel.closed[s][i][p]), args.limit,
                                             panel.slots[index + p], sums);
        }
        continue;
      }
      _mm512_store_si512(sums, low);
      _mm512_store_si512(sums + 8, high);
    }
  }
}

// Adds the strip to kRows rows of x by kTiles row tiles; `row` of x is `at` in the chunk.
template <int kTerms, int kRows, int kTiles>
void RunStrip(const LinearArgs& args, const IntStrip& strip, int64_t row, int at, int index,
              Panel& panel) {
  const bool has_min = args.scale.has_min, has_zeros = args.scale.has_zeros;
  const bool has_zero = args.scale.zero_point != 0;
  const int64_t stride = args.padded_cols;
  const int64_t first_col = strip.first_tile * kTileCols + strip.cell[0].run * kLaneCols;
  const int8_t* terms = FirstTerms<kTerms>(args) + row * stride + first_col;
  const int8_t* terms_lo = kTerms == 2 ? args.lo + row * stride + first_col : nullptr;
  const uint8_t* codes = panel.codes[strip.cell[0].run][0][index];
  __m512 acc[kRows][kTiles];
  ISA_UNROLL
  for (int i = 0; i < kRows; ++i) {
    ISA_UNROLL
    for (int p = 0; p < kTiles; ++p) acc[i][p] = _mm512_load_ps(panel.acc[at + i][index + p]);
  }
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
         ++j, codes += 256 * kPanelTiles, terms += kLaneCols, terms_lo += kLaneCols) {
      ISA_UNROLL
      for (int t = 0; t < 4; ++t) {
        __m512i w[kTiles];
        ISA_UNROLL
        for (int p = 0; p < kTiles; ++p)
          w[p] = _mm512_load_si512(codes + 64 * kPanelTiles * t + 64 * p);
        ISA_UNROLL
        for (int i = 0; i < kRows; ++i) {
          const __m512i q = BroadcastTerms(terms + i * stride + 4 * t);
          ISA_UNROLL
          for (int p = 0; p < kTiles; ++p) AddDot(sum[i][p], w[p], q);
          if constexpr (kTerms == 2) {
            const __m512i q_lo = BroadcastTerms(terms_lo + i * stride + 4 * t);
            ISA_UNROLL
            for (int p = 0; p < kTiles; ++p) AddDot(low[i][p], w[p], q_lo);
          }
        }
      }
    }
    const GroupNumbers* numbers = &panel.numbers[index][c];
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ISA_UNROLL
      for (int p = 0; p < kTiles; ++p) {
        if constexpr (kTerms == 2)
          sum[i][p] = _mm512_add_epi32(_mm512_slli_epi32(sum[i][p], 8), low[i][p]);
      }
      if (has_zero) {
        const __m512i term = _mm512_set1_epi32(panel.terms[at + i].zero_term[c]);
        ISA_UNROLL
        for (int p = 0; p < kTiles; ++p) sum[i][p] = _mm512_add_epi32(sum[i][p], term);
      } else if (has_zeros) {
        const __m512i q_sum = _mm512_set1_epi32(panel.terms[at + i].zero_term[c]);
        ISA_UNROLL
        for (int p = 0; p < kTiles; ++p) {
          sum[i][p] = _mm512_sub_epi32(
              sum[i][p], _mm512_mullo_epi32(_mm512_load_si512(numbers[p * kMaxCells].zero), q_sum));
        }
      }
      const __m512 s_a = _mm512_set1_ps(panel.terms[at + i].act_scale[c]);
      ISA_UNROLL
      for (int p = 0; p < kTiles; ++p) {
        acc[i][p] = _mm512_fmadd_ps(
            _mm512_cvtepi32_ps(sum[i][p]),
            _mm512_mul_ps(_mm512_load_ps(numbers[p * kMaxCells].scale), s_a), acc[i][p]);
      }
      if (has_min) {
        const __m512 factor = _mm512_set1_ps(panel.terms[at + i].min_factor[c]);
        ISA_UNROLL
        for (int p = 0; p < kTiles; ++p) {
          acc[i][p] =
              _mm512_fmadd_ps(_mm512_load_ps(numbers[p * kMaxCells].min), factor, acc[i][p]);
        }
      }
    }
    if (cell.closes && args.sums != nullptr) {
      ISA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        ISA_UNROLL
        for (int p = 0; p < kTiles; ++p) {
          _mm512_store_ps(panel.closed[closed][i][p], acc[i][p]);
          acc[i][p] = _mm512_setzero_ps();
        }
      }
      ++closed;
    }
  }
  ISA_UNROLL
  for (int i = 0; i < kRows; ++i) {
    ISA_UNROLL
    for (int p = 0; p < kTiles; ++p) _mm512_store_ps(panel.acc[at + i][index + p], acc[i][p]);
  }
  if (closed > 0) AddClosed<kRows, kTiles>(args, closed, at, index, panel);
}

template <int kTerms, int kTiles>
ISA_INLINE void RunBlock(const LinearArgs& args, const IntStrip& strip, int64_t row, int rows,
                         int at, int index, Panel& panel) {
  static_assert(kBlockRows == 2);
  if (rows == 1) return RunStrip<kTerms, 1, kTiles>(args, strip, row, at, index, panel);
  RunStrip<kTerms, 2, kTiles>(args, strip, row, at, index, panel);
}

// The strip, unpacked, for all rows of x of a chunk and all row tiles of a panel. Not a template of
// the width.
template <int kTerms>
void RunChunk(const LinearArgs& args, const IntStrip& strip, int cell_runs, int64_t row, int rows,
              int64_t tile, int tiles, Panel& panel) {
  const int blocks = (rows + kBlockRows - 1) / kBlockRows;
  PlanPrefetch(args, strip, tile, tiles, blocks * ((tiles + 3) / 4) * strip.cells, panel);
  if (cell_runs > 0) {
    PrepareEqualCells<kTerms>(args, strip.first_tile, strip.tiles, cell_runs, row, rows,
                              panel.terms);
  } else {
    PrepareRows(args, strip, row, rows, panel);
  }
  for (int at = 0; at < rows; at += kBlockRows) {
    const int block = rows - at < kBlockRows ? rows - at : kBlockRows;
    int index = 0;
    for (; index + 4 <= tiles; index += 4)
      RunBlock<kTerms, 4>(args, strip, row + at, block, at, index, panel);
    for (; index + 2 <= tiles; index += 2)
      RunBlock<kTerms, 2>(args, strip, row + at, block, at, index, panel);
    if (index < tiles) RunBlock<kTerms, 1>(args, strip, row + at, block, at, index, panel);
  }
}

void ClearPanel(bool sums, int rows, Panel& panel) {
  const __m512i zero = _mm512_setzero_si512();
  for (int i = 0; i < rows; ++i) {
    panel.poison[i] = 0;
    for (int t = 0; t < kPanelTiles; ++t) {
      _mm512_store_si512(panel.acc[i][t], zero);
      if (!sums) continue;
      _mm512_store_si512(panel.sums[i][t], zero);
      _mm512_store_si512(panel.sums[i][t] + 8, zero);
    }
  }
}

void StorePanel(const LinearArgs& args, int64_t tile, int tiles, int64_t row, int rows,
                const Panel& panel) {
  for (int i = 0; i < rows; ++i) {
    for (int t = 0; t < tiles; ++t) {
      if (args.sums == nullptr) {
        StoreSlots(args, tile + t, row + i, _mm512_load_ps(panel.acc[i][t]));
      } else {
        StoreSlotSums(args, tile + t, row + i, _mm512_load_si512(panel.sums[i][t]),
                      _mm512_load_si512(panel.sums[i][t] + 8));
      }
    }
    if (args.sums != nullptr) AddPoison(args, row + i, panel.poison[i]);
  }
}

ISA_END

template <int kBits, int kTerms>
void RunPanels(const LinearArgs& args, int cell_runs, int64_t tile_begin, int64_t tile_end) {
  Panel panel;
  IntStrip strip;
  for (int64_t tile = tile_begin; tile < tile_end; tile += kPanelTiles) {
    const int tiles =
        static_cast<int>(tile_end - tile < kPanelTiles ? tile_end - tile : kPanelTiles);
    for (int t = 0; t < tiles; ++t) panel.slots[t] = SlotsOfTile(args, tile + t);
    for (int64_t row = 0; row < args.m; row += kChunkRows) {
      const int rows = static_cast<int>(args.m - row < kChunkRows ? args.m - row : kChunkRows);
      ClearPanel(args.sums != nullptr, rows, panel);
      StripWalk walk(args, /*groups=*/true, kActCols<kTerms>);
      while (walk.Next(strip)) {
        for (int t = 0; t < tiles; ++t) UnpackStrip<kBits>(args, strip, tile + t, t, panel);
        RunChunk<kTerms>(args, strip, cell_runs, row, rows, tile, tiles, panel);
      }
      StorePanel(args, tile, tiles, row, rows, panel);
    }
  }
}

}  // namespace
}  // namespace bitshard
