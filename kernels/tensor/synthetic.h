// Weights that no checkpoint holds, for benchmarks: of a model's shape and format, with values such
// that activations stay near 1 in size. Every number is a function of the seed, the weight's name,
// its row and its column (synthetic_values.h), so that the slices of ranks are cuts of one whole,
// wherever they lie and whoever makes them.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

#include "kernels/tensor/packed_matrix.h"
#include "kernels/tensor/synthetic_values.h"

namespace bitshard {

// Every spec that SizesOf accepts, but for a scale factor that is not finite, or not above 0 where
// it multiplies: INVALID_ARGUMENT. The factor is the spec's: scales of kE4m3 come as near to the
// right size as eight bits times it can, those of kNested lie around it.
absl::Status CheckSynthetic(const PackedSpec& spec);

// For the slice of `spec` that begins at (row_begin, col_begin) of the weight `name`, whose rows
// have `whole_cols` columns; the spec's offsets into its first group and block of rows are those of
// that place. REQUIRES: CheckSynthetic(spec) is OK, whole_cols > 0.
SyntheticSource SyntheticSourceOf(uint64_t seed, std::string_view name, const PackedSpec& spec,
                                  uint64_t whole_cols, uint64_t row_begin, uint64_t col_begin);

// Rows [row_begin, row_end) of the matrix; with row 0 what rows share. Threads may fill different
// runs of 16 rows of one builder. REQUIRES: CheckSynthetic(builder.spec()) is OK, row_end <= rows.
void FillSyntheticRows(const SyntheticSource& source, uint64_t row_begin, uint64_t row_end,
                       PackedMatrixBuilder& builder);

// out[count]: elements [begin, begin + count) of a vector. A bias (by its name) has values of up to
// 1/8 in size; what else is a vector, a norm's weight, is 1 throughout.
void FillSyntheticVector(uint64_t seed, std::string_view name, uint64_t begin, uint64_t count,
                         float* out);

}  // namespace bitshard
