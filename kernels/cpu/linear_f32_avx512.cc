// y = W x in mode f32 on AVX-512: dense f32, f16, bf16 and codes of 2 to 8 bits.
//
// The 16 virtual lanes of an output are 16 accumulators, each a vector of 16 rows, so that the
// closing tree of a segment (l+8, l+4, l+2, l+1) is 15 additions for 16 rows. Several rows of x:
// strips of 256 columns of 2 row tiles are decoded once into L1, lane by lane in the tree's order;
// up to 4 rows of x by 2 row tiles share them. One row of x: codes are decoded on the way; for
// dense types, stored row by row, a vector has the lanes of a row, and the tree is done for 16 rows
// at once. All do the same operations on every lane.
#include <cstdint>

#include "kernels/cpu/decode_f32_avx512.h"
#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_store_avx512.h"
#include "kernels/cpu/linear_strips.h"
#include "kernels/cpu/scale_plane_avx512.h"
#include "kernels/cpu/unpack_avx512.h"

namespace bitshard {
namespace {

constexpr int kPanelTiles = 2;  // row tiles decoded together
constexpr int kStripTiles = 4;  // tiles of 64 columns decoded together
constexpr int kStripRuns = kStripTiles * kTileRuns;
constexpr int kChunkRows = 32;  // rows of x that use them
using F32Strip = Strip<kStripTiles>;

// Lanes in the order of the tree's leaves, as places in storage order: column k % 16 is at
// LaneOfColumn, so that l+8, l+4, l+2, l+1 are 1, 8, 4, 2 places away. Its own inverse.
constexpr int kLeaf[kLaneCols] = {0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15};

struct alignas(64) Panel {
  float values[kLaneCols][kStripRuns][kPanelTiles][kTileRows];  // by leaf, slot order
  // Lanes of a segment that goes on in the next strip, by leaf.
  float lanes[kChunkRows][kPanelTiles][kLaneCols][kTileRows];
  float whole[kChunkRows][kPanelTiles][kTileRows];  // of the last segment
  int64_t sums[kChunkRows][kPanelTiles][kTileRows];
  int64_t poison[kChunkRows];
  unsigned slots[kPanelTiles];  // those of real rows
};

ISA_BEGIN_AVX512VNNI

ISA_INLINE void StoreRun(const __m512 values[16], int run, int index, Panel& panel) {
  ISA_UNROLL
  for (int place = 0; place < kLaneCols; ++place)
    _mm512_store_ps(panel.values[kLeaf[place]][run][index], values[place]);
}

// Decodes runs [0, runs) of the strip of one row tile, `index` in the panel.
template <Type kType, int kBits>
void DecodeStrip(const LinearArgs& args, const F32Strip& strip, int runs, int64_t tile, int index,
                 GroupWalk& walk, Panel& panel) {
  const uint8_t* codes = args.codes + tile * args.tile_bytes;
  const int64_t first_run = strip.first_tile * kTileRuns;
  if constexpr (kType != Type::kInt) {
    for (int run = 0; run < runs; ++run) {
      __m512 rows[kTileRows], values[kLaneCols];
      ISA_UNROLL
      for (int r = 0; r < kTileRows; ++r) rows[r] = LoadDense<kType>(codes, first_run + run, r);
      TransposeRows(rows, values);
      StoreRun(values, run, index, panel);
    }
    return;
  }
  const bool has_min = args.scale.has_min;
  GroupNumbers numbers;
  LoadGroups(args.scale, tile, walk.group, 1, &numbers);
  for (int t = 0; t < strip.tiles; ++t) {
    const uint8_t* word = codes + (strip.first_tile + t) * (128 * kBits);
    alignas(64) __m512i unpacked[kTileRuns][4];
    PrefetchTile<kBits>(word);
    UnpackTile<kBits>(word, unpacked);
    for (int j = 0; j < kTileRuns && t * kTileRuns + j < runs; ++j) {
      const int run = t * kTileRuns + j;
      if (first_run + run >= walk.end) {
        NextGroup(walk);
        LoadGroups(args.scale, tile, walk.group, 1, &numbers);
      }
      const GroupVectors group = Vectors(args.scale, numbers);
      __m512i columns[4];
      __m512 values[kLaneCols];
      TransposeRun(unpacked[j], columns);
      if (has_min) {
        DecodeRun<true>(columns, group, values);
      } else {
        DecodeRun<false>(columns, group, values);
      }
      StoreRun(values, run, index, panel);
    }
  }
}

// Sums of leaves [kFirst, kFirst + 2^kLevel) over runs of a cell, for kRows rows of x and kPair row
// tiles. kRuns = 0: `runs` of them.
template <int kLevel, int kFirst, int kRows, int kPair, int kRuns>
ISA_INLINE void SumLeaves(const float* x, int64_t stride, const float* values, int runs,
                          __m512 sum[kRows][kPair]) {
  if constexpr (kLevel == 0) {
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ISA_UNROLL
      for (int p = 0; p < kPair; ++p) sum[i][p] = _mm512_setzero_ps();
    }
    constexpr int64_t kRunStep = kPanelTiles * kTileRows;
    const float* w = values + kFirst * (kStripRuns * kRunStep);
    const float* at = x + kLeaf[kFirst];
    const int end = kRuns > 0 ? kRuns : runs;
    ISA_UNROLL
    for (int run = 0; run < end; ++run, w += kRunStep, at += kLaneCols) {
      __m512 v[kPair];
      ISA_UNROLL
      for (int p = 0; p < kPair; ++p) v[p] = _mm512_load_ps(w + p * kTileRows);
      ISA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const __m512 xv = _mm512_set1_ps(at[i * stride]);
        ISA_UNROLL
        for (int p = 0; p < kPair; ++p) sum[i][p] = _mm512_fmadd_ps(v[p], xv, sum[i][p]);
      }
    }
  } else {
    __m512 right[kRows][kPair];
    SumLeaves<kLevel - 1, kFirst, kRows, kPair, kRuns>(x, stride, values, runs, sum);
    SumLeaves<kLevel - 1, kFirst + (1 << (kLevel - 1)), kRows, kPair, kRuns>(x, stride, values,
                                                                             runs, right);
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ISA_UNROLL
      for (int p = 0; p < kPair; ++p) sum[i][p] = _mm512_add_ps(sum[i][p], right[i][p]);
    }
  }
}

// The tree over 16 lanes in memory, by leaf.
ISA_INLINE __m512 SumTree(const float lanes[kLaneCols][kTileRows]) {
  __m512 sums[kLaneCols];
  ISA_UNROLL
  for (int l = 0; l < kLaneCols; ++l) sums[l] = _mm512_load_ps(lanes[l]);
  ISA_UNROLL
  for (int half = 1; half < kLaneCols; half *= 2) {
    ISA_UNROLL
    for (int l = 0; l < kLaneCols; l += 2 * half) sums[l] = _mm512_add_ps(sums[l], sums[l + half]);
  }
  return sums[0];
}

// A part of a segment: lanes are kept in memory.
template <int kRows, int kPair>
ISA_INLINE void AddToLanes(const float* x, int64_t stride, const float* values,
                           const StripCell& cell, int at, Panel& panel) {
  constexpr int64_t kRunStep = kPanelTiles * kTileRows;
  for (int l = 0; l < kLaneCols; ++l) {
    __m512 sum[kRows][kPair];
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ISA_UNROLL
      for (int p = 0; p < kPair; ++p) {
        sum[i][p] = cell.opens ? _mm512_setzero_ps() : _mm512_load_ps(panel.lanes[at + i][p][l]);
      }
    }
    const float* w = values + l * (kStripRuns * kRunStep);
    const float* xl = x + kLeaf[l];
    for (int run = 0; run < cell.runs; ++run, w += kRunStep, xl += kLaneCols) {
      __m512 v[kPair];
      ISA_UNROLL
      for (int p = 0; p < kPair; ++p) v[p] = _mm512_load_ps(w + p * kTileRows);
      ISA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const __m512 xv = _mm512_set1_ps(xl[i * stride]);
        ISA_UNROLL
        for (int p = 0; p < kPair; ++p) sum[i][p] = _mm512_fmadd_ps(v[p], xv, sum[i][p]);
      }
    }
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ISA_UNROLL
      for (int p = 0; p < kPair; ++p) _mm512_store_ps(panel.lanes[at + i][p][l], sum[i][p]);
    }
  }
}

ISA_INLINE void CloseRow(const LinearArgs& args, __m512 value, int at, int index, Panel& panel) {
  if (args.sums == nullptr) {
    _mm512_store_ps(panel.whole[at][index], value);
  } else {
    panel.poison[at] += AddSegment(value, args.limit, panel.slots[index], panel.sums[at][index]);
  }
}

// One cell of the strip for kRows rows of x and kPair row tiles.
template <int kRows, int kPair>
void RunCell(const LinearArgs& args, const F32Strip& strip, const StripCell& cell, int64_t row,
             int at, Panel& panel) {
  const int64_t stride = args.padded_cols;
  const float* x = args.x + row * stride + (strip.first_tile * kTileRuns + cell.run) * kLaneCols;
  const float* values = panel.values[0][cell.run][0];
  if (cell.opens && cell.closes) {
    __m512 sum[kRows][kPair];
    if (cell.runs == kTileRuns) {
      SumLeaves<4, 0, kRows, kPair, kTileRuns>(x, stride, values, cell.runs, sum);
    } else {
      SumLeaves<4, 0, kRows, kPair, 0>(x, stride, values, cell.runs, sum);
    }
    ISA_UNROLL
    for (int i = 0; i < kRows; ++i) {
      ISA_UNROLL
      for (int p = 0; p < kPair; ++p) CloseRow(args, sum[i][p], at + i, p, panel);
    }
    return;
  }
  AddToLanes<kRows, kPair>(x, stride, values, cell, at, panel);
  if (!cell.closes) return;
  for (int i = 0; i < kRows; ++i) {
    for (int p = 0; p < kPair; ++p)
      CloseRow(args, SumTree(panel.lanes[at + i][p]), at + i, p, panel);
  }
}

template <int kPair>
void RunStrip(const LinearArgs& args, const F32Strip& strip, int64_t row, int rows, Panel& panel) {
  for (int c = 0; c < strip.cells; ++c) {
    int at = 0;
    for (; at + 4 <= rows; at += 4)
      RunCell<4, kPair>(args, strip, strip.cell[c], row + at, at, panel);
    if (at + 2 <= rows) {
      RunCell<2, kPair>(args, strip, strip.cell[c], row + at, at, panel);
      at += 2;
    }
    if (at < rows) RunCell<1, kPair>(args, strip, strip.cell[c], row + at, at, panel);
  }
}

void ClearPanel(int rows, Panel& panel) {
  const __m512i zero = _mm512_setzero_si512();
  for (int i = 0; i < rows; ++i) {
    panel.poison[i] = 0;
    for (int t = 0; t < kPanelTiles; ++t) {
      _mm512_store_si512(panel.whole[i][t], zero);
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
        StoreSlots(args, tile + t, row + i, _mm512_load_ps(panel.whole[i][t]));
      } else {
        StoreSlotSums(args, tile + t, row + i, _mm512_load_si512(panel.sums[i][t]),
                      _mm512_load_si512(panel.sums[i][t] + 8));
      }
    }
    if (args.sums != nullptr) AddPoison(args, row + i, panel.poison[i]);
  }
}

// One row of x: what is left of a segment or tile.
struct RowSums {
  __m512 whole;
  __m512i low, high;
  int64_t poison;
};

ISA_INLINE void CloseOneRow(const LinearArgs& args, int64_t tile, __m512 value, RowSums& sums) {
  if (args.sums == nullptr) {
    sums.whole = value;
    return;
  }
  __m512i low, high;
  sums.poison += ToFixed(value, args.limit, SlotsOfTile(args, tile), &low, &high);
  sums.low = _mm512_add_epi64(sums.low, low);
  sums.high = _mm512_add_epi64(sums.high, high);
}

ISA_INLINE void StoreOneRow(const LinearArgs& args, int64_t tile, const RowSums& sums) {
  if (args.sums == nullptr) return StoreSlots(args, tile, 0, sums.whole);
  StoreSlotSums(args, tile, 0, sums.low, sums.high);
  AddPoison(args, 0, sums.poison);
}

// Runs of a group for one row of x, one row tile; lanes by place.
template <bool kMin>
ISA_INLINE void AddRuns(const __m512i (*columns)[4], const float* x, int runs,
                        const GroupVectors& group, __m512 lanes[kLaneCols]) {
  for (int run = 0; run < runs; ++run, x += kLaneCols) {
    __m512 values[kLaneCols];
    DecodeRun<kMin>(columns[run], group, values);
    ISA_UNROLL
    for (int l = 0; l < kLaneCols; ++l)
      lanes[l] = _mm512_fmadd_ps(values[l], _mm512_set1_ps(x[l]), lanes[l]);
  }
}

template <int kBits>
void RunCodesOfOneRow(const LinearArgs& args, int64_t tile) {
  RowSums sums = {_mm512_setzero_ps(), _mm512_setzero_si512(), _mm512_setzero_si512(), 0};
  GroupWalk walk = FirstGroup(args);
  GroupNumbers numbers[kStripRuns];
  alignas(64) __m512i columns[kStripRuns][4];
  __m512 lanes[kLaneCols];
  ISA_UNROLL
  for (int l = 0; l < kLaneCols; ++l) lanes[l] = _mm512_setzero_ps();
  StripWalk strips(args, /*groups=*/false, /*act_cols=*/0);
  F32Strip strip;
  while (strips.Next(strip)) {
    const uint8_t* word = args.codes + tile * args.tile_bytes + strip.first_tile * (128 * kBits);
    for (int t = 0; t < strip.tiles; ++t, word += 128 * kBits) {
      __m512i codes[kTileRuns][4];
      PrefetchTile<kBits>(word);
      UnpackTile<kBits>(word, codes);
      ISA_UNROLL
      for (int j = 0; j < kTileRuns; ++j) TransposeRun(codes[j], columns[t * kTileRuns + j]);
    }
    const int64_t first_run = strip.first_tile * kTileRuns;
    const StripCell& last = strip.cell[strip.cells - 1];
    LoadGroups(args.scale, tile, walk.group, GroupsOf(walk, first_run + last.run + last.runs),
               numbers);
    const GroupNumbers* of_group = numbers;
    for (int c = 0; c < strip.cells; ++c) {
      const StripCell& cell = strip.cell[c];
      if (cell.opens) {
        ISA_UNROLL
        for (int l = 0; l < kLaneCols; ++l) lanes[l] = _mm512_setzero_ps();
      }
      for (int run = cell.run; run < cell.run + cell.runs;) {
        if (first_run + run >= walk.end) NextGroup(walk), ++of_group;
        int end = cell.run + cell.runs;
        if (walk.end - first_run < end) end = static_cast<int>(walk.end - first_run);
        const GroupVectors group = Vectors(args.scale, *of_group);
        const float* x = args.x + (first_run + run) * kLaneCols;
        if (args.scale.has_min) {
          AddRuns<true>(columns + run, x, end - run, group, lanes);
        } else {
          AddRuns<false>(columns + run, x, end - run, group, lanes);
        }
        run = end;
      }
      if (!cell.closes) continue;
      alignas(64) float by_leaf[kLaneCols][kTileRows];
      ISA_UNROLL
      for (int l = 0; l < kLaneCols; ++l) _mm512_store_ps(by_leaf[kLeaf[l]], lanes[l]);
      CloseOneRow(args, tile, SumTree(by_leaf), sums);
    }
    // The next strip begins in this group or, when it has ended, in the next.
    if (first_run + last.run + last.runs >= walk.end) NextGroup(walk);
  }
  StoreOneRow(args, tile, sums);
}

// Two rows' places p and p ^ 1: (a, a, b, b) in 128 bits.
ISA_INLINE __m512 AddNeighbours(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

// The tree of 16 rows, a vector each with its lanes by place; slot order.
ISA_INLINE __m512 SumRows(const __m512 rows[kTileRows]) {
  __m512 halves[2];
  ISA_UNROLL
  for (int h = 0; h < 2; ++h) {
    __m512 pair[4], quad[2];
    ISA_UNROLL
    for (int j = 0; j < 4; ++j) pair[j] = AddNeighbours(rows[8 * h + j], rows[8 * h + j + 4]);
    ISA_UNROLL
    for (int j = 0; j < 2; ++j) {  // p and p ^ 8
      quad[j] = _mm512_add_ps(_mm512_shuffle_f32x4(pair[2 * j], pair[2 * j + 1], 0x44),
                              _mm512_shuffle_f32x4(pair[2 * j], pair[2 * j + 1], 0xee));
    }
    halves[h] = _mm512_add_ps(_mm512_shuffle_f32x4(quad[0], quad[1], 0x88),  // p and p ^ 4
                              _mm512_shuffle_f32x4(quad[0], quad[1], 0xdd));
  }
  return AddNeighbours(halves[0], halves[1]);  // p and p ^ 2
}

template <Type kType>
void RunDenseOfOneRow(const LinearArgs& args, int64_t tile) {
  RowSums sums = {_mm512_setzero_ps(), _mm512_setzero_si512(), _mm512_setzero_si512(), 0};
  const uint8_t* values = args.codes + tile * args.tile_bytes;
  int64_t run = 0;
  for (int64_t segment = 0; segment < args.segments; ++segment) {
    const int64_t columns = (segment + 1) * args.segment_cols;
    const int64_t end = ((columns < args.k ? columns : args.k) + kLaneCols - 1) / kLaneCols;
    __m512 rows[kTileRows];
    ISA_UNROLL
    for (int r = 0; r < kTileRows; ++r) rows[r] = _mm512_setzero_ps();
    for (; run < end; ++run) {
      const __m512 x = _mm512_loadu_ps(args.x + run * kLaneCols);
      ISA_UNROLL
      for (int r = 0; r < kTileRows; ++r)
        rows[r] = _mm512_fmadd_ps(LoadDense<kType>(values, run, r), x, rows[r]);
    }
    CloseOneRow(args, tile, SumRows(rows), sums);
  }
  StoreOneRow(args, tile, sums);
}

ISA_END

template <Type kType, int kBits>
void RunPanels(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  Panel panel;
  F32Strip strip;
  for (int64_t tile = tile_begin; tile < tile_end; tile += kPanelTiles) {
    const int tiles =
        static_cast<int>(tile_end - tile < kPanelTiles ? tile_end - tile : kPanelTiles);
    for (int t = 0; t < tiles; ++t) panel.slots[t] = SlotsOfTile(args, tile + t);
    for (int64_t row = 0; row < args.m; row += kChunkRows) {
      const int rows = static_cast<int>(args.m - row < kChunkRows ? args.m - row : kChunkRows);
      ClearPanel(rows, panel);
      GroupWalk walks[kPanelTiles];
      for (GroupWalk& walk : walks) walk = FirstGroup(args);
      StripWalk strips(args, /*groups=*/false, /*act_cols=*/0);
      while (strips.Next(strip)) {
        const StripCell& last = strip.cell[strip.cells - 1];
        for (int t = 0; t < tiles; ++t) {
          DecodeStrip<kType, kBits>(args, strip, last.run + last.runs, tile + t, t, walks[t],
                                    panel);
        }
        if (tiles == kPanelTiles) {
          RunStrip<kPanelTiles>(args, strip, row, rows, panel);
        } else {
          RunStrip<1>(args, strip, row, rows, panel);
        }
      }
      StorePanel(args, tile, tiles, row, rows, panel);
    }
  }
}

template <Type kType, int kBits>
void Run(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  if (args.m > 1) return RunPanels<kType, kBits>(args, tile_begin, tile_end);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    if constexpr (kType == Type::kInt) {
      RunCodesOfOneRow<kBits>(args, tile);
    } else {
      RunDenseOfOneRow<kType>(args, tile);
    }
  }
}

template <Type kType, int kBits = 0>
constexpr LinearKernel Kernel(const char* name) {
  return {.name = name,
          .isa = Isa::kAvx512Vnni,
          .cost = 100,
          .form = kFormF32,
          .is_for = &IsOfKind<kType, kBits>,
          .refuses = &RefusesUnalignedRuns,
          .run = &Run<kType, kBits>};
}

using Register = RegisterKernel<LinearKernel>;
const Register kF32(Kernel<Type::kF32>("cpu/linear_f32_f32_avx512"));
const Register kF16(Kernel<Type::kF16>("cpu/linear_f16_f32_avx512"));
const Register kBf16(Kernel<Type::kBf16>("cpu/linear_bf16_f32_avx512"));
const Register kW2(Kernel<Type::kInt, 2>("cpu/linear_w2_f32_avx512"));
const Register kW3(Kernel<Type::kInt, 3>("cpu/linear_w3_f32_avx512"));
const Register kW4(Kernel<Type::kInt, 4>("cpu/linear_w4_f32_avx512"));
const Register kW5(Kernel<Type::kInt, 5>("cpu/linear_w5_f32_avx512"));
const Register kW6(Kernel<Type::kInt, 6>("cpu/linear_w6_f32_avx512"));
const Register kW7(Kernel<Type::kInt, 7>("cpu/linear_w7_f32_avx512"));
const Register kW8(Kernel<Type::kInt, 8>("cpu/linear_w8_f32_avx512"));

}  // namespace
}  // namespace bitshard
