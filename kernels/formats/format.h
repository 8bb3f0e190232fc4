// How a stored weight format packs numbers: the tensors that a matrix is stored in, what their
// bytes mean, which of them a slice needs, and how they become the canonical layout that kernels
// read.
//
// One file a format in this folder, registered before main; read-only afterwards, so any thread may
// use it. A weight [rows, cols] is stored in one or more parts (codes, scales, zero points), each a
// row-major matrix of bytes. A slice may be cut anywhere: what straddles a cut (a word, a block, a
// group's scale) is read by both sides. Most formats have one part, whose rows are runs of blocks:
// they derive from BlockFormat.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/tensor/packed_matrix.h"

namespace bitshard {

// The elements [row_begin, row_end) x [col_begin, col_end) of a weight.
struct MatrixSlice {
  uint64_t row_begin = 0;
  uint64_t row_end = 0;
  uint64_t col_begin = 0;
  uint64_t col_end = 0;

  uint64_t rows() const { return row_end - row_begin; }
  uint64_t cols() const { return col_end - col_begin; }
  bool empty() const { return rows() == 0 || cols() == 0; }
};

// A part as stored: `rows` rows of `row_bytes` bytes, without gaps.
struct PartShape {
  uint64_t rows = 0;
  uint64_t row_bytes = 0;

  friend bool operator==(const PartShape&, const PartShape&) = default;
};

// Bytes [byte_begin, byte_end) of each of the part's rows [row_begin, row_end).
struct PartSlice {
  uint64_t row_begin = 0;
  uint64_t row_end = 0;
  uint64_t byte_begin = 0;
  uint64_t byte_end = 0;

  uint64_t rows() const { return row_end - row_begin; }
  uint64_t row_bytes() const { return byte_end - byte_begin; }
  uint64_t bytes() const { return rows() * row_bytes(); }

  friend bool operator==(const PartSlice&, const PartSlice&) = default;
};

// One span a part, in the order of the format's parts.
using PartBytes = absl::Span<const absl::Span<const uint8_t>>;

class WeightFormat {
 public:
  explicit WeightFormat(std::string_view name) : name_(name) {}
  virtual ~WeightFormat() = default;

  const std::string& name() const { return name_; }

  // 1 or more.
  virtual size_t part_count() const = 0;

  // INVALID_ARGUMENT when no weight [rows, cols] can be stored in this format (a part of a block),
  // or on overflow.
  virtual absl::StatusOr<PartShape> ShapeOfPart(size_t part, uint64_t rows,
                                                uint64_t cols) const = 0;

  // What of a part a slice needs; an empty slice reads nothing (0 rows). Of two slices with the
  // same columns the byte columns are the same, and the later rows' part rows do not begin or end
  // earlier. REQUIRES: the slice lies inside of a weight with `cols` columns for which ShapeOfPart
  // is OK.
  virtual PartSlice SliceOfPart(size_t part, uint64_t cols, const MatrixSlice& slice) const = 0;

  // The definition, in plain loops: out[rows * cols] = the values of a whole weight.
  // REQUIRES: parts[i] has all bytes of ShapeOfPart(i, rows, cols).
  virtual void Decode(PartBytes parts, uint64_t rows, uint64_t cols, float* out) const = 0;

  // The canonical form of a rank's slice of a weight with `cols` columns: code width, kind of
  // scales, and where in its first group the slice begins.
  virtual PackedSpec Canonical(uint64_t cols, const MatrixSlice& slice) const = 0;

  // Packs the rows of `slice`, the first of them as row `first_row` of the rank's matrix, whose
  // columns are the slice's. parts[i] has the bytes of SliceOfPart(i, cols, slice). DATA_LOSS on
  // values that no writer produces (a scale that is not finite). Different threads may pack
  // different runs of 16 rows of one builder. REQUIRES: builder.spec() is Canonical() of a slice
  // with the same columns, and more rows than first_row + slice.rows() at most.
  virtual absl::Status ToCanonical(PartBytes parts, uint64_t cols, const MatrixSlice& slice,
                                   uint64_t first_row, PackedMatrixBuilder& builder) const = 0;

 private:
  const std::string name_;
};

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

// A format with a single part, of which a row is a run of blocks of block_elements() values in
// block_bytes() bytes. Rows may be cut anywhere; a cut inside a block gives the whole block to both
// sides. A format says what a block means, in three functions; the rest is here.
class BlockFormat : public WeightFormat {
 public:
  BlockFormat(std::string_view name, uint64_t block_elements, uint64_t block_bytes)
      : WeightFormat(name), block_elements_(block_elements), block_bytes_(block_bytes) {}

  uint64_t block_elements() const { return block_elements_; }
  uint64_t block_bytes() const { return block_bytes_; }

  // Bytes of `cols` stored values; nullopt when cols is no multiple of the block, or on overflow.
  std::optional<uint64_t> RowBytes(uint64_t cols) const;

  // The slice [begin, end) of a row of `cols` values, widened to whole blocks; an empty slice reads
  // nothing. REQUIRES: begin <= end <= cols, cols a multiple of the block.
  ColumnSlice ReadColumns(uint64_t begin, uint64_t end) const;

  // out[rows * cols] = the values of `bytes`.
  // REQUIRES: cols is a multiple of the block and bytes.size() == rows * RowBytes(cols).
  virtual void Decode(absl::Span<const uint8_t> bytes, uint64_t rows, uint64_t cols,
                      float* out) const = 0;

  // The canonical form of a rank's [rows, slice.cols()] matrix.
  virtual PackedSpec Canonical(uint64_t rows, const ColumnSlice& slice) const = 0;

  // Packs rows [row_begin, row_begin + row_count) of the rank's matrix. `bytes` holds
  // slice.read_cols() values a row; the columns outside [slice.begin, slice.end) are left out.
  virtual absl::Status ToCanonical(absl::Span<const uint8_t> bytes, uint64_t row_begin,
                                   uint64_t row_count, const ColumnSlice& slice,
                                   PackedMatrixBuilder& builder) const = 0;

  size_t part_count() const final { return 1; }
  absl::StatusOr<PartShape> ShapeOfPart(size_t part, uint64_t rows, uint64_t cols) const final;
  PartSlice SliceOfPart(size_t part, uint64_t cols, const MatrixSlice& slice) const final;
  void Decode(PartBytes parts, uint64_t rows, uint64_t cols, float* out) const final;
  PackedSpec Canonical(uint64_t cols, const MatrixSlice& slice) const final;
  absl::Status ToCanonical(PartBytes parts, uint64_t cols, const MatrixSlice& slice,
                           uint64_t first_row, PackedMatrixBuilder& builder) const final;

 private:
  const uint64_t block_elements_;
  const uint64_t block_bytes_;
};

// All parts of a weight [rows, cols] together; errors as ShapeOfPart.
absl::StatusOr<uint64_t> StoredBytes(const WeightFormat& format, uint64_t rows, uint64_t cols);

// Null when no format has this name. A format that a family makes (FormatFamily) lives from its
// first mention to the end of the process.
const WeightFormat* FindFormat(std::string_view name);

// Like FindFormat; UNIMPLEMENTED with the list of the known ones.
absl::StatusOr<const WeightFormat*> GetFormat(std::string_view name);

// Null when there is none of this name, or it is no BlockFormat.
const BlockFormat* FindBlockFormat(std::string_view name);

// Those with fixed names, sorted by name; families are not among them.
std::vector<const WeightFormat*> AllFormats();

// Before main: `const RegisterFormat kRegistered(new Q4_1);`. The registry owns it.
struct RegisterFormat {
  explicit RegisterFormat(const WeightFormat* format);
};

// Formats whose name carries their parameters, so that there are too many to list:
// "ct_int5 group=32 scale=bf16 asym dense". One name a format: `make` returns null for a name that
// is not spelled as the format spells itself. Names that begin with `prefix` belong to the family.
struct FormatFamily {
  std::string prefix;      // "ct_int"
  std::string name_shape;  // for people: "ct_int2..8 group=<columns>|channel ..."
  std::unique_ptr<const WeightFormat> (*make)(std::string_view name) = nullptr;
};

struct RegisterFormatFamily {
  explicit RegisterFormatFamily(FormatFamily family);
};

}  // namespace bitshard
