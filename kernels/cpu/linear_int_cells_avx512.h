// What the kernels of linear_int_avx512.h share: which cells a matrix has, and what they need of a
// row of x.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_strips.h"
#include "kernels/registry/linear_kernel.h"

namespace bitshard {
namespace {

constexpr int kPanelTiles = 4;       // row tiles of a panel
constexpr int kStripTiles = 4;       // tiles of 64 columns unpacked together
constexpr int kChunkRows = 64;       // rows of x that use a strip
constexpr int kOffsetOf8Bits = 128;  // linear_int_pairs_avx512.h
using IntStrip = Strip<kStripTiles>;
constexpr int kMaxCells = IntStrip::kMaxCells;
static_assert(kMaxCells == 16);  // a vector

// What cells need of a row of x: the activations' scale; that times the sum of q; the sum of q, or
// what the zero point makes of it when it is one for the matrix; for linear_int_pairs_avx512.h what
// its sums begin with.
struct alignas(64) CellTerms {
  float act_scale[kMaxCells];
  float min_factor[kMaxCells];
  int32_t zero_term[kMaxCells];
  int32_t start[kMaxCells];
};

template <int kTerms>
constexpr int kActCols = kTerms == 2 ? kActivationGroup : kA8Group;

// Runs of every cell if tiles of 64 columns divide into equal ones, else 0.
inline int EqualCellRuns(const LinearArgs& args, int act_cols) {
  if (args.segments > 1 && args.segment_cols % kTileCols != 0) return 0;
  if (args.scale.groups <= 1) return act_cols / kLaneCols;
  const int group = args.scale.group_size;
  const int cell = group < act_cols ? group : act_cols;
  if (args.scale.first_group_offset % cell != 0) return 0;
  return act_cols % cell == 0 && group % cell == 0 ? cell / kLaneCols : 0;
}

// How often the sum of q is part of CellTerms::start.
inline int32_t StartFactor(const LinearArgs& args) {
  return (args.bits == 8 ? kOffsetOf8Bits : 0) - (args.scale.has_zeros ? 0 : args.scale.zero_point);
}

ISA_BEGIN_AVX512VNNI

template <int kTerms>
ISA_INLINE const int8_t* FirstTerms(const LinearArgs& args) {
  return kTerms == 2 ? args.hi : args.a8;
}

// From sums of runs.
ISA_INLINE __m512i SumsOfCells(__m512i sums, int cell_runs) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
  for (int r = cell_runs; r > 1; r /= 2) {
    sums = _mm512_permutexvar_epi32(even, _mm512_add_epi32(sums, _mm512_srli_epi64(sums, 32)));
  }
  return sums;
}

// What equal cells (EqualCellRuns) of some tiles of 64 columns need of some rows of x: all cells of
// a row in a vector.
template <int kTerms, bool kPairs = false>
void PrepareEqualCells(const LinearArgs& args, int64_t first_tile, int tiles, int cell_runs,
                       int64_t row, int rows, CellTerms* out) {
  constexpr int kActRuns = kActCols<kTerms> / kLaneCols;
  const __m512i factor = _mm512_set1_epi32(args.scale.has_zeros ? 1 : -args.scale.zero_point);
  const __m512i cell = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const int shift = (kActRuns == 4 ? 2 : 1) - (cell_runs == 4 ? 2 : cell_runs == 2 ? 1 : 0);
  const __m512i act_group = _mm512_srli_epi32(cell, static_cast<unsigned>(shift));
  const int64_t first_group = first_tile * (kTileRuns / kActRuns);
  const int64_t groups_left = args.act_groups - first_group;
  const __mmask16 groups = static_cast<__mmask16>(groups_left < 16 ? (1u << groups_left) - 1 : ~0u);
  const __mmask16 runs = static_cast<__mmask16>((1u << tiles * kTileRuns) - 1);
  const float* scales = args.act_scales + row * args.act_groups + first_group;
  const int64_t row_runs = args.padded_cols / kLaneCols;
  const int32_t* run_sums = args.run_sums + row * row_runs + first_tile * kTileRuns;
  [[maybe_unused]] const __m512i start_factor = _mm512_set1_epi32(StartFactor(args));
  [[maybe_unused]] const int32_t* pair_sums =
      kPairs ? args.pair_sums + (run_sums - args.run_sums) : nullptr;
  for (int i = 0; i < rows; ++i, scales += args.act_groups, run_sums += row_runs) {
    const __m512 s_a = _mm512_permutexvar_ps(act_group, _mm512_maskz_loadu_ps(groups, scales));
    _mm512_store_ps(out[i].act_scale, s_a);
    const __m512i sums = SumsOfCells(_mm512_maskz_loadu_epi32(runs, run_sums), cell_runs);
    if constexpr (kPairs) {
      const __m512i pairs = SumsOfCells(_mm512_maskz_loadu_epi32(runs, pair_sums), cell_runs);
      _mm512_store_si512(out[i].start,
                         _mm512_sub_epi32(_mm512_mullo_epi32(sums, start_factor), pairs));
      pair_sums += row_runs;
    }
    _mm512_store_si512(out[i].zero_term, _mm512_mullo_epi32(sums, factor));
    _mm512_store_ps(out[i].min_factor, _mm512_mul_ps(s_a, _mm512_cvtepi32_ps(sums)));
  }
}

ISA_END

}  // namespace
}  // namespace bitshard
