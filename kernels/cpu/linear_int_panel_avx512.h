// Many rows of x: a form (linear_int_bytes_avx512.h, linear_int_pairs_avx512.h) unpacks strips of
// 256 columns of a few row tiles once into L1, turned so that a vector has 16 rows of W; blocks of
// rows of x by row tiles keep their cells and sums in registers, and nothing is left to add across
// a vector. For any cells. Here is what the forms share.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_int_cells_avx512.h"
#include "kernels/cpu/linear_store_avx512.h"
#include "kernels/cpu/scale_plane_avx512.h"
#include "kernels/cpu/unpack_avx512.h"

namespace bitshard {
namespace {

constexpr int kBlockSums = 8;  // rows of x by row tiles of a block

struct alignas(64) Panel {
  GroupNumbers numbers[kPanelTiles][kMaxCells];  // of the tiles that are unpacked
  CellTerms terms[kChunkRows];  // of the cells of the strip, for the rows of x at hand
  float acc[kChunkRows][kPanelTiles][kTileRows];   // of a segment that goes on in the next strip
  float closed[kMaxCells][kBlockSums][kTileRows];  // segments that ended in the strip
  int64_t sums[kChunkRows][kPanelTiles][kTileRows];
  int64_t poison[kChunkRows];
  unsigned slots[kPanelTiles];            // those of real rows
  const char* range[2 * kPanelTiles][2];  // what is left to prefetch, [begin, end)
  int ranges, next_range, lines_a_cell;
};

ISA_BEGIN_AVX512VNNI

// The numbers of a row tile's groups, cell by cell.
void LoadNumbers(const LinearArgs& args, const IntStrip& strip, int64_t tile,
                 GroupNumbers numbers[kMaxCells]) {
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

template <class Form, int kBits>
void UnpackStrip(const LinearArgs& args, const IntStrip& strip, int64_t tile, int index,
                 typename Form::Codes& out) {
  const uint8_t* word = args.codes + tile * args.tile_bytes + strip.first_tile * (128 * kBits);
  for (int t = 0; t < strip.tiles; ++t) {
    __m512i codes[kTileRuns][4];
    UnpackTile<kBits>(word + t * (128 * kBits), codes);
    ISA_UNROLL
    for (int j = 0; j < kTileRuns; ++j) {
      __m512i columns[4];
      TransposeRun(codes[j], columns);
      Form::template StoreRun<kBits>(columns, t * kTileRuns + j, index, out);
    }
  }
  Form::FinishTile(strip, index, out);
}

// What any cells need of some rows of x.
template <class Form>
void PrepareRows(const LinearArgs& args, const IntStrip& strip, int64_t row, int rows,
                 Panel& panel) {
  const bool sums = args.scale.has_min || args.scale.has_zeros || args.scale.zero_point != 0;
  const int32_t factor = args.scale.has_zeros ? 1 : -args.scale.zero_point;
  const int32_t start_factor = StartFactor(args);
  for (int i = 0; i < rows; ++i) {
    const float* scales = args.act_scales + (row + i) * args.act_groups;
    const int32_t* run_sums =
        args.run_sums + (row + i) * (args.padded_cols / kLaneCols) + strip.first_tile * kTileRuns;
    const int32_t* pair_sums = Form::kPairs ? args.pair_sums + (run_sums - args.run_sums) : nullptr;
    for (int c = 0; c < strip.cells; ++c) {
      const StripCell& cell = strip.cell[c];
      const float s_a = scales[cell.act_group];
      panel.terms[i].act_scale[c] = s_a;
      if (!sums && !Form::kPairs) continue;
      int32_t q_sum = 0;
      for (int j = 0; j < cell.runs; ++j) q_sum += run_sums[cell.run + j];
      panel.terms[i].zero_term[c] = q_sum * factor;
      panel.terms[i].min_factor[c] = s_a * static_cast<float>(q_sum);
      if constexpr (Form::kPairs) {
        uint32_t start = static_cast<uint32_t>(q_sum * start_factor);
        for (int j = 0; j < cell.runs; ++j) start -= static_cast<uint32_t>(pair_sums[cell.run + j]);
        panel.terms[i].start[c] = static_cast<int32_t>(start);
      }
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
// memory on Zen 5 (16 rows, 4 bits: 143 us in bursts, 109 us spread). Into L2 on Zen 4, whose L1 is
// full of the panel: 464 tokens/s of 16 sequences, 446 into L1.
ISA_INLINE void PrefetchSome(Panel& panel) {
  if (panel.next_range == panel.ranges) return;
  const char** range = panel.range[panel.next_range];
  const char* line = range[0];
  for (int i = 0; i < panel.lines_a_cell; ++i, line += 64) {
    if (kAsksForLinesAhead) {
      _mm_prefetch(line, _MM_HINT_T0);
    } else {
      _mm_prefetch(line, _MM_HINT_T1);
    }
  }
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
        const __m512 value = _mm512_load_ps(panel.closed[s][i * kTiles + p]);
        __m512i fixed_low, fixed_high;
        largest = _mm512_max_epu32(largest, Magnitude(value));
        GoodToFixed(value, &fixed_low, &fixed_high);
        low = _mm512_add_epi64(low, fixed_low);
        high = _mm512_add_epi64(high, fixed_high);
      }
      if (__builtin_expect(Poisons(largest, args.limit) != 0, 0)) {  // again, with care
        for (int s = 0; s < segments; ++s) {
          panel.poison[at + i] += AddSegment(_mm512_load_ps(panel.closed[s][i * kTiles + p]),
                                             args.limit, panel.slots[index + p], sums);
        }
        continue;
      }
      _mm512_store_si512(sums, low);
      _mm512_store_si512(sums + 8, high);
    }
  }
}

// Adds the integers of a cell to kRows rows of x by kTiles row tiles, and keeps what a segment that
// ends with it has got.
template <int kRows, int kTiles>
ISA_INLINE void AddCell(const LinearArgs& args, const StripCell& cell, int c, int at, int first,
                        int* closed, __m512i sum[kRows][kTiles], __m512 acc[kRows][kTiles],
                        Panel& panel) {
  const GroupNumbers* numbers = &panel.numbers[first][c];
  const CellTerms* terms = &panel.terms[at];
  ISA_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (args.scale.has_zeros) {
      const __m512i q_sum = _mm512_set1_epi32(terms[i].zero_term[c]);
      ISA_UNROLL
      for (int p = 0; p < kTiles; ++p) {
        sum[i][p] = _mm512_sub_epi32(
            sum[i][p], _mm512_mullo_epi32(_mm512_load_si512(numbers[p * kMaxCells].zero), q_sum));
      }
    }
    const __m512 s_a = _mm512_set1_ps(terms[i].act_scale[c]);
    ISA_UNROLL
    for (int p = 0; p < kTiles; ++p) {
      acc[i][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i][p]),
                                  _mm512_mul_ps(_mm512_load_ps(numbers[p * kMaxCells].scale), s_a),
                                  acc[i][p]);
    }
  }
  if (args.scale.has_min) {
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const __m512 factor = _mm512_set1_ps(terms[i].min_factor[c]);
      ISA_UNROLL
      for (int p = 0; p < kTiles; ++p) {
        acc[i][p] = _mm512_fmadd_ps(_mm512_load_ps(numbers[p * kMaxCells].min), factor, acc[i][p]);
      }
    }
  }
  if (!cell.closes || args.sums == nullptr) return;
  ISA_UNROLL
  for (int i = 0; i < kRows; ++i) {
    ISA_UNROLL
    for (int p = 0; p < kTiles; ++p) {
      _mm512_store_ps(panel.closed[*closed][i * kTiles + p], acc[i][p]);
      acc[i][p] = _mm512_setzero_ps();
    }
  }
  ++*closed;
}

template <int kRows, int kTiles>
ISA_INLINE void LoadSums(const Panel& panel, int at, int index, __m512 acc[kRows][kTiles]) {
  const float* from = panel.acc[at][index];
  ISA_UNROLL
  for (int i = 0; i < kRows; ++i) {
    ISA_UNROLL
    for (int p = 0; p < kTiles; ++p)
      acc[i][p] = _mm512_load_ps(from + (i * kPanelTiles + p) * kTileRows);
  }
}

template <int kRows, int kTiles>
ISA_INLINE void StoreSums(const LinearArgs& args, int closed, int at, int index,
                          const __m512 acc[kRows][kTiles], Panel& panel) {
  float* to = panel.acc[at][index];
  ISA_UNROLL
  for (int i = 0; i < kRows; ++i) {
    ISA_UNROLL
    for (int p = 0; p < kTiles; ++p)
      _mm512_store_ps(to + (i * kPanelTiles + p) * kTileRows, acc[i][p]);
  }
  if (closed > 0) AddClosed<kRows, kTiles>(args, closed, at, index, panel);
}

ISA_INLINE __m512i Broadcast4Bytes(const void* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  return _mm512_set1_epi32(four);
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

// The strip for all rows of x of a chunk and all row tiles of a panel: as many tiles as the form
// keeps are unpacked, then all rows use them.
template <class Form, int kBits>
void RunChunk(const LinearArgs& args, const IntStrip& strip, int cell_runs, int64_t row, int rows,
              int64_t tile, int tiles, typename Form::Codes& codes, Panel& panel) {
  const int blocks = (rows + Form::kBlockRows - 1) / Form::kBlockRows;
  const int columns = (tiles + Form::kBlockTiles - 1) / Form::kBlockTiles;
  PlanPrefetch(args, strip, tile, tiles, blocks * columns * strip.cells, panel);
  if (cell_runs > 0) {
    PrepareEqualCells<Form::kTerms, Form::kPairs>(args, strip.first_tile, strip.tiles, cell_runs,
                                                  row, rows, panel.terms);
  } else {
    PrepareRows<Form>(args, strip, row, rows, panel);
  }
  for (int index = 0; index < tiles; index += Form::kBlockTiles) {
    const int count = tiles - index < Form::kBlockTiles ? tiles - index : Form::kBlockTiles;
    for (int t = 0; t < count; ++t) {
      LoadNumbers(args, strip, tile + index + t, panel.numbers[t]);
      UnpackStrip<Form, kBits>(args, strip, tile + index + t, t, codes);
    }
    for (int at = 0; at < rows; at += Form::kBlockRows) {
      const int block = rows - at < Form::kBlockRows ? rows - at : Form::kBlockRows;
      Form::RunBlock(args, strip, row + at, block, at, index, count, codes, panel);
    }
  }
}

ISA_END

template <class Form, int kBits>
void RunPanels(const LinearArgs& args, int cell_runs, int64_t tile_begin, int64_t tile_end) {
  Panel panel;
  typename Form::Codes codes;
  IntStrip strip;
  for (int64_t tile = tile_begin; tile < tile_end; tile += kPanelTiles) {
    const int tiles =
        static_cast<int>(tile_end - tile < kPanelTiles ? tile_end - tile : kPanelTiles);
    for (int t = 0; t < tiles; ++t) panel.slots[t] = SlotsOfTile(args, tile + t);
    for (int64_t row = 0; row < args.m; row += kChunkRows) {
      const int rows = static_cast<int>(args.m - row < kChunkRows ? args.m - row : kChunkRows);
      ClearPanel(args.sums != nullptr, rows, panel);
      StripWalk walk(args, /*groups=*/true, kActCols<Form::kTerms>);
      while (walk.Next(strip)) {
        RunChunk<Form, kBits>(args, strip, cell_runs, row, rows, tile, tiles, codes, panel);
      }
      StorePanel(args, tile, tiles, row, rows, panel);
    }
  }
}

}  // namespace
}  // namespace bitshard
