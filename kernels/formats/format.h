// How a stored weight format packs numbers: the bytes of a matrix on disk, what they mean, where
// they may be cut, and how they become the canonical layout that kernels read.
//
// One file a format in this folder, registered before main; read-only afterwards, so any thread may
// use it. A stored matrix is row-major; a row is a run of blocks of block_elements() values in
// block_bytes() bytes. Rows may be cut anywhere, columns at multiples of the block: a cut inside a
// block gives the whole block to both sides (ReadColumns).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/tensor/packed_matrix.h"

namespace bitshard {

// The columns of a matrix that a rank owns, [begin, end), inside the columns that its bytes cover,
// [read_begin, read_end).
struct ColumnSlice {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t read_begin = 0;
  uint64_t read_end = 0;

  uint64_t cols() const { return end - begin; }
  uint64_t read_cols() const { return read_end - read_begin; }
};

class WeightFormat {
 public:
  WeightFormat(std::string_view name, uint64_t block_elements, uint64_t block_bytes)
      : name_(name), block_elements_(block_elements), block_bytes_(block_bytes) {}
  virtual ~WeightFormat() = default;

  const std::string& name() const { return name_; }
  uint64_t block_elements() const { return block_elements_; }
  uint64_t block_bytes() const { return block_bytes_; }

  // Bytes of `cols` stored values; nullopt when cols is no multiple of the block, or on overflow.
  std::optional<uint64_t> RowBytes(uint64_t cols) const;

  // The slice [begin, end) of a row of `cols` values, widened to whole blocks; an empty slice reads
  // nothing. REQUIRES: begin <= end <= cols, cols a multiple of the block.
  ColumnSlice ReadColumns(uint64_t begin, uint64_t end) const;

  // The definition, in plain loops: out[rows * cols] = the values of `bytes`.
  // REQUIRES: cols is a multiple of the block and bytes.size() == rows * RowBytes(cols).
  virtual void Decode(absl::Span<const uint8_t> bytes, uint64_t rows, uint64_t cols,
                      float* out) const = 0;

  // The canonical form of a rank's [rows, slice.cols()] matrix in this format: code width, kind of
  // scales, and where in its first group the slice begins.
  virtual PackedSpec Canonical(uint64_t rows, const ColumnSlice& slice) const = 0;

  // Packs rows [row_begin, row_begin + row_count) of the rank's matrix. `bytes` holds
  // slice.read_cols() values a row; the columns outside [slice.begin, slice.end) are left out.
  // DATA_LOSS on values that no writer produces (a scale that is not finite). Different threads may
  // pack different runs of 16 rows of one builder. REQUIRES: builder.spec() == Canonical(rows,
  // slice), rows >= row_begin + row_count.
  virtual absl::Status ToCanonical(absl::Span<const uint8_t> bytes, uint64_t row_begin,
                                   uint64_t row_count, const ColumnSlice& slice,
                                   PackedMatrixBuilder& builder) const = 0;

 private:
  const std::string name_;
  const uint64_t block_elements_;
  const uint64_t block_bytes_;
};

// Null when no format has this name.
const WeightFormat* FindFormat(std::string_view name);

// Like FindFormat; UNIMPLEMENTED with the list of the known ones.
absl::StatusOr<const WeightFormat*> GetFormat(std::string_view name);

// Sorted by name.
std::vector<const WeightFormat*> AllFormats();

// Before main: `const RegisterFormat kRegistered(new Q4_1);`. The registry owns it.
struct RegisterFormat {
  explicit RegisterFormat(const WeightFormat* format);
};

}  // namespace bitshard
