// y = W x for codes of 2 to 8 bits and activations of one (a8) or two (a16) s8 terms on AVX-512
// VNNI: int32 cells, f32 per cell in ascending k. One form for a few rows of x, one for many in
// bytes and one for very many in pairs of columns: all add the same integers and then do the same
// operations on every output.
#pragma once

#include <cstdint>

#include "kernels/cpu/linear_int_bytes_avx512.h"
#include "kernels/cpu/linear_int_pairs_avx512.h"
#include "kernels/cpu/linear_int_rows_avx512.h"

namespace bitshard {
namespace {

// At most so many rows of x go through registers (measured), fewer than so many in bytes: of pairs
// the dearer unpacking counts there. 16 is not settled (docs/decisions.md, 86).
constexpr int kFewRows = 6, kPairRows = 16;

template <int kBits, class Form>
void RunIntLinear(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) {
  constexpr int kTerms = Form::kTerms;
  const int cell_runs = EqualCellRuns(args, kActCols<kTerms>);
  if (args.m > kFewRows || cell_runs == 0) {
    if constexpr (Form::kPairs) {
      if (args.m < kPairRows)
        return RunPanels<Bytes<2>, kBits>(args, cell_runs, tile_begin, tile_end);
    }
    return RunPanels<Form, kBits>(args, cell_runs, tile_begin, tile_end);
  }
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

template <int kBits, class Form>
constexpr LinearKernel IntLinear(const char* name, int cost = 100) {
  return {.name = name,
          .isa = Isa::kAvx512Vnni,
          .cost = cost,
          .form = Form::kTerms == 2 ? kFormA16 : kFormA8,
          .is_for = &IsOfKind<PackedSpec::Type::kInt, kBits>,
          .refuses = &RefusesUnalignedRuns,
          .run = &RunIntLinear<kBits, Form>};
}

}  // namespace
}  // namespace bitshard
