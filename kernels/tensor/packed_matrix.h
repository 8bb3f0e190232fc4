// A rank's weight matrix [rows, cols] in the canonical form that CPU kernels read: values as the
// checkpoint stores them, never expanded. Immutable once built; any thread may read it.
//
// Tile: 16 rows. Inside every run of 16 columns the storage order is `kLaneOfColumn` (the order in
// which P16x64 words hold them), for dense types too, so that all kernels share one form of
// prepared activations.
//  - Integers of b bits: P16x64-S tiles in CPU order, [row tile][64 columns][word 0..b-1][lane
//  0..31] of u32. Rows are
//    padded to 16, columns to 64; padded codes equal the zero point.
//  - Scales, f16 as stored: [row tile][group]{scale[16], min[16] if has_min}, the 16 rows in the
//  order `kScaleSlotOfRow`
//    (the order in which kernels obtain their sums). Padded rows have scale and min 0. Groups run
//    along the columns; the first one may have begun `first_group_offset` columns before column 0
//    (a cut inside a group). value = (code - zero_point) * scale, or fma(code - zero_point, scale,
//    min) in f32.
//  - f32, f16, bf16: [row tile][16 columns][row 0..15][16] of the storage type, columns padded to
//  16 with zeros.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/tensor/buffer.h"

namespace bitshard {

inline constexpr int kTileRows = 16;
inline constexpr int kTileCols = 64;
inline constexpr int kLaneCols = 16;

// Place of column k % 16 inside its run of 16: columns 0-7 and 8-15 interleaved.
inline constexpr int LaneOfColumn(int k) { return 2 * (k % 8) + k % 16 / 8; }
// Place of row r % 16 in a group's scales.
inline constexpr int ScaleSlotOfRow(int r) { return 4 * (r % 4) + (r % 16) / 4; }

struct PackedSpec {
  enum class Type { kInt, kF32, kF16, kBf16 };
  uint64_t rows = 0;
  uint64_t cols = 0;
  Type type = Type::kF32;
  // Only kInt has the rest.
  int bits = 0;        // width of a code, 2..8
  int zero_point = 0;  // 0..2^bits-1; one for the whole matrix
  int group_size = 0;  // columns a scale covers
  bool has_min = false;
  int first_group_offset = 0;  // columns of the first group before column 0: 0..group_size-1

  // Groups that columns [0, cols) touch.
  uint64_t groups() const {
    if (type != Type::kInt || cols == 0) return 0;
    return (first_group_offset + cols - 1) / group_size + 1;
  }
  // "q4 group=32 min", "bf16": for reports and messages.
  std::string Describe() const;
};

// Bytes that the canonical form takes, tile padding included. INVALID_ARGUMENT on an impossible
// spec or overflow.
absl::StatusOr<uint64_t> PackedBytes(const PackedSpec& spec);

class PackedMatrix {
 public:
  PackedMatrix() = default;  // empty, 0 x 0
  PackedMatrix(PackedMatrix&&) noexcept = default;
  PackedMatrix& operator=(PackedMatrix&&) noexcept = default;

  const PackedSpec& spec() const { return spec_; }
  int64_t rows() const { return static_cast<int64_t>(spec_.rows); }
  int64_t cols() const { return static_cast<int64_t>(spec_.cols); }
  int64_t row_tiles() const { return (rows() + kTileRows - 1) / kTileRows; }
  int64_t groups() const { return static_cast<int64_t>(spec_.groups()); }
  // Everything it holds, padding included: PackedBytes(spec()).
  uint64_t bytes() const { return codes_.bytes() + scales_.bytes(); }

  // The exact values of one row. out[cols]. REQUIRES: 0 <= row < rows().
  void RowToF32(int64_t row, float* out) const;
  // Columns [begin, end) of it. out[end - begin].
  void RowToF32(int64_t row, int64_t begin, int64_t end, float* out) const;

  // For kernels. All columns of a row tile lie together: codes of tile t start at t * tile_bytes().
  int64_t tile_bytes() const { return tile_bytes_; }
  const uint8_t* tile(int64_t row_tile) const { return codes_.data() + row_tile * tile_bytes_; }
  // u16 per (row tile): groups() * (has_min ? 32 : 16).
  int64_t scale_stride() const { return groups() * (spec_.has_min ? 2 * kTileRows : kTileRows); }
  const uint16_t* scales(int64_t row_tile) const {
    return scales_.as<uint16_t>() + row_tile * scale_stride();
  }

  // For the reference kernels: single elements by the definition, padded columns and rows included.
  int CodeAt(int64_t row, int64_t col) const;
  float ScaleAt(int64_t row, int64_t group) const;
  float MinAt(int64_t row, int64_t group) const;
  float ValueAt(int64_t row, int64_t col) const;
  int64_t GroupOf(int64_t col) const { return (col + spec_.first_group_offset) / spec_.group_size; }

 private:
  friend class PackedMatrixBuilder;
  PackedSpec spec_;
  int64_t tile_bytes_ = 0;
  Buffer codes_;
  Buffer scales_;
};

// Takes the rows as the source has them and puts them into tiles. The memory is the matrix's own:
// nothing is copied. Every row must be set once. Different threads may set rows of different runs
// of 16.
class PackedMatrixBuilder {
 public:
  // INVALID_ARGUMENT: see PackedBytes.
  static absl::StatusOr<PackedMatrixBuilder> Create(const PackedSpec& spec);
  // REQUIRES: PackedBytes(spec).ok().
  explicit PackedMatrixBuilder(const PackedSpec& spec);

  const PackedSpec& spec() const { return matrix_.spec_; }

  // kInt: codes[cols], scales[groups] and, with has_min, mins[groups], both as f16 bits. A row sets
  // all of its columns. REQUIRES: codes below 2^bits.
  void SetIntRow(uint64_t row, const uint8_t* codes, const uint16_t* scales,
                 const uint16_t* mins = nullptr);
  // Dense types: cols values of the storage type, native byte order; no alignment needed.
  void SetDenseRow(uint64_t row, const void* values);

  PackedMatrix Build() &&;

 private:
  PackedMatrix matrix_;
};

}  // namespace bitshard
