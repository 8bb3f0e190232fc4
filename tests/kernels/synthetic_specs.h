// Every width with every kind of scale and every offset that it may have, as whole weights and as
// slices of them, for the tests of synthetic weights.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/tensor/packed_matrix.h"

namespace bitshard {

// Whole weights of integers. Groups of 16 columns for odd widths, of 32 for even ones, of all
// columns where scales are f32 and bits 5 or 6.
inline std::vector<PackedSpec> SyntheticIntSpecs(uint64_t rows, uint64_t cols) {
  using Kind = ScaleKind;
  std::vector<PackedSpec> all;
  for (int bits = 2; bits <= 8; ++bits) {
    PackedSpec spec;
    spec.rows = rows;
    spec.cols = cols;
    spec.type = PackedSpec::Type::kInt;
    spec.bits = bits;
    const auto add = [&all, &spec](ScaleOffset offset) {
      spec.offset = offset;
      spec.zero_point = offset == ScaleOffset::kZero || spec.has_min() ? 0 : 1 << (spec.bits - 1);
      spec.source_row_groups = spec.scale == Kind::kNested ? spec.groups() : 0;
      all.push_back(spec);
    };
    for (const Kind kind : {Kind::kF16, Kind::kBf16, Kind::kF32, Kind::kE8m0, Kind::kE4m3,
                            Kind::kNested, Kind::kSuperS8, Kind::kSuperU8Min, Kind::kSuperU4Min}) {
      spec.scale = kind;
      spec.group_size = kind == Kind::kF32 && (bits == 5 || bits == 6) ? static_cast<int>(cols)
                        : bits % 2 == 1                                ? 16
                                                                       : 32;
      spec.scale_factor = kind == Kind::kE4m3 ? 0.03125f : kind == Kind::kNested ? 0.0f : 1.0f;
      add(ScaleOffset::kNone);
      if (IsSuper(kind)) continue;
      add(ScaleOffset::kMin);
      add(ScaleOffset::kZero);
      if (kind == Kind::kNested) continue;
      for (const int block_rows : {0, 24}) {
        spec.block_rows = block_rows;
        add(ScaleOffset::kNone);
      }
      spec.block_rows = 1;
    }
  }
  return all;
}

// The spec of the slice [rows, cols] of `whole` that begins at (row_begin, col_begin).
inline PackedSpec SliceOf(const PackedSpec& whole, uint64_t rows, uint64_t cols, uint64_t row_begin,
                          uint64_t col_begin) {
  PackedSpec spec = whole;
  spec.rows = rows;
  spec.cols = cols;
  if (spec.type != PackedSpec::Type::kInt) return spec;
  const auto group = static_cast<uint64_t>(spec.group_size);
  const uint64_t period = IsSuper(spec.scale) ? kSuperBlockCols : group;
  spec.first_group_offset = static_cast<int>(col_begin % period);
  if (spec.block_rows > 1)
    spec.first_row_offset = static_cast<int>(row_begin % static_cast<uint64_t>(spec.block_rows));
  if (spec.scale == ScaleKind::kNested)
    spec.first_block = row_begin * spec.source_row_groups + col_begin / group;
  return spec;
}

}  // namespace bitshard
