// y = W x for codes of 2 to 8 bits and activations of one (a8) or two (a16) s8 terms on AVX-512
// VNNI: u8 codes x s8 terms, int32 cells, f32 per cell in ascending k. One form for a few rows of x
// and one for many: both add the same integers and then do the same operations on every output.
#pragma once

#include <cstdint>

#include "kernels/cpu/linear_int_panel_avx512.h"
#include "kernels/cpu/linear_int_rows_avx512.h"

namespace bitshard {
namespace {

constexpr int kFewRows = 6;  // at most these go through registers; measured

template <int kBits, int kTerms>
void RunIntLinear(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  const int cell_runs = EqualCellRuns(args, kActCols<kTerms>);
  if (args.m > kFewRows || cell_runs == 0)
    return RunPanels<kBits, kTerms>(args, cell_runs, tile_begin, tile_end);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    if (cell_runs == 1) {
      RunTile<kBits, kTerms, 1>(args, tile);
    } else if (cell_runs == 2) {
      RunTile<kBits, kTerms, 2>(args, tile);
    } else if constexpr (kTerms == 2) {
      RunTile<kBits, kTerms, 4>(args, tile);
    }
  }
}

template <int kBits, int kTerms>
constexpr LinearKernel IntLinear(const char* name) {
  return {.name = name,
          .isa = Isa::kAvx512Vnni,
          .cost = 100,
          .form = kTerms == 2 ? kFormA16 : kFormA8,
          .is_for = &IsOfKind<PackedSpec::Type::kInt, kBits>,
          .refuses = &RefusesUnalignedRuns,
          .run = &RunIntLinear<kBits, kTerms>};
}

}  // namespace
}  // namespace bitshard
