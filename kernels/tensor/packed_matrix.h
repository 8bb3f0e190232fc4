// A rank's weight matrix [rows, cols] in the canonical form that CPU kernels read: values as the
// checkpoint stores them, never expanded. Immutable once built; any thread may read it.
//
// Tile: 16 rows. Inside every run of 16 columns the storage order is `kLaneOfColumn` (the order in
// which P16x64 words hold them), for dense types too, so that all kernels share one form of
// prepared activations.
//  - Integers of b bits: P16x64-S tiles in CPU order, [row tile][64 columns][word 0..b-1][lane
//  0..31] of u32. Rows are padded to 16 (code 0, scale 0), columns to 64 (code `zero_point`).
//  - Scales, minima, zero points as stored: kernels/tensor/scale_plane.h. Padded rows have 0.
//  - f32, f16, bf16: [row tile][16 columns][row 0..15][16] of the storage type, columns padded to
//  16 with zeros.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/tensor/buffer.h"
#include "kernels/tensor/scale_plane.h"

namespace bitshard {

inline constexpr int kTileRows = 16;
inline constexpr int kTileCols = 64;
inline constexpr int kLaneCols = 16;

// Place of column k % 16 inside its run of 16: columns 0-7 and 8-15 interleaved.
inline constexpr int LaneOfColumn(int k) { return 2 * (k % 8) + k % 16 / 8; }
// Place of row r % 16 in a group's scales.
inline constexpr int ScaleSlotOfRow(int r) { return 4 * (r % 4) + (r % 16) / 4; }
inline constexpr int RowOfScaleSlot(int slot) { return ScaleSlotOfRow(slot); }  // its own inverse

struct PackedSpec {
  enum class Type { kInt, kF32, kF16, kBf16 };
  uint64_t rows = 0;
  uint64_t cols = 0;
  Type type = Type::kF32;
  // Only kInt has the rest.
  int bits = 0;        // width of a code, 2..8
  int zero_point = 0;  // 0..2^bits-1; one for the whole matrix, 0 with ScaleOffset::kZero
  int group_size = 0;  // columns a scale covers; the whole source's width for a scale a channel
  ScaleKind scale = ScaleKind::kF16;
  ScaleOffset offset = ScaleOffset::kNone;
  // Columns of the first group before column 0: 0..group_size-1. In two-level kinds, of the first
  // super-block: 0..255.
  int first_group_offset = 0;
  // Rows a scale covers: 1, a block of a 2-D grid, or 0 = all. first_row_offset: rows of the first
  // block before row 0.
  int block_rows = 1;
  int first_row_offset = 0;
  float scale_factor = 1;  // kE4m3: multiplies; kNested: is added
  // kNested: the groups of the whole source matrix count along its rows, source_row_groups a row;
  // group 0 of row 0 is number first_block.
  uint64_t first_block = 0;
  uint64_t source_row_groups = 0;

  bool has_min() const {
    return offset == ScaleOffset::kMin || scale == ScaleKind::kSuperU8Min ||
           scale == ScaleKind::kSuperU4Min;
  }
  // Groups that columns [0, cols) touch; in two-level kinds from the first super-block's start.
  uint64_t groups() const {
    if (type != Type::kInt || cols == 0) return 0;
    return (first_group_offset + cols - 1) / group_size + 1;
  }
  uint64_t super_blocks() const {
    if (!IsSuper(scale) || cols == 0) return 0;
    return (first_group_offset + cols - 1) / kSuperBlockCols + 1;
  }
  // Rows of scales: row_blocks() x groups() numbers when rows share them.
  uint64_t row_blocks() const {
    if (block_rows == 1 || rows == 0) return rows;
    return block_rows == 0 ? 1 : (first_row_offset + rows - 1) / block_rows + 1;
  }
  // "int4 zero=8 group=32 scale=f16", "bf16": for reports and messages.
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
  uint64_t bytes() const { return codes_.bytes() + scales_.bytes() + nested_.bytes(); }

  // The exact values of one row. out[cols]. REQUIRES: 0 <= row < rows().
  void RowToF32(int64_t row, float* out) const;
  // Columns [begin, end) of it. out[end - begin].
  void RowToF32(int64_t row, int64_t begin, int64_t end, float* out) const;

  // For kernels. All columns of a row tile lie together: codes of tile t start at t * tile_bytes().
  int64_t tile_bytes() const { return tile_bytes_; }
  const uint8_t* tile(int64_t row_tile) const { return codes_.data() + row_tile * tile_bytes_; }
  // REQUIRES: type kInt.
  ScaleView scale_view() const;

  // For the reference kernels: single elements by the definition, padded columns and rows included.
  int CodeAt(int64_t row, int64_t col) const;
  float ScaleAt(int64_t row, int64_t group) const;
  float MinAt(int64_t row, int64_t group) const;
  int ZeroAt(int64_t row, int64_t group) const;
  float ValueAt(int64_t row, int64_t col) const;
  int64_t GroupOf(int64_t col) const { return (col + spec_.first_group_offset) / spec_.group_size; }

 private:
  friend class PackedMatrixBuilder;
  PackedSpec spec_;
  int64_t tile_bytes_ = 0;
  int64_t record_bytes_ = 0;
  int64_t scale_tile_bytes_ = 0;
  Buffer codes_;
  Buffer scales_;
  Buffer nested_;  // kNested: table[256], then second
};

// One row's numbers, as the source has them; what the spec does not ask for stays null.
struct GroupRow {
  // [groups]: u16 bits (kF16, kBf16), f32, u8 codes; in two-level kinds the u8 or i8 of each group,
  // for kSuperU4Min with the minimum in the high nibble.
  const void* scales = nullptr;
  const uint16_t* mins = nullptr;          // [groups] f16 bits
  const uint8_t* zeros = nullptr;          // [groups], below 2^bits
  const uint8_t* sub_mins = nullptr;       // [groups], kSuperU8Min
  const uint16_t* super_scales = nullptr;  // [super_blocks] f16 bits
  const uint16_t* super_mins = nullptr;    // [super_blocks] f16 bits
};

// Takes the rows as the source has them and puts them into tiles. The memory is the matrix's own:
// nothing is copied. Every row must be set once. Different threads may set rows of different runs
// of 16.
class PackedMatrixBuilder {
 public:
  // INVALID_ARGUMENT: see PackedBytes.
  static absl::StatusOr<PackedMatrixBuilder> Create(const PackedSpec& spec);
  // REQUIRES: PackedBytes(spec).ok(). The matrix lies in `arena`, which has kArenaSlack bytes more
  // for it and outlives it; on the heap when that is null.
  explicit PackedMatrixBuilder(const PackedSpec& spec, MemoryArena* arena = nullptr);
  // For the alignment of its pieces.
  static constexpr size_t kArenaSlack = 3 * kBufferAlignment;

  const PackedSpec& spec() const { return matrix_.spec_; }

  // kInt: codes[cols] and the row's scales. REQUIRES: codes below 2^bits.
  void SetIntRow(uint64_t row, const uint8_t* codes, const GroupRow& groups);
  // The same for f16 scales, with f16 minima or without.
  void SetIntRow(uint64_t row, const uint8_t* codes, const uint16_t* scales,
                 const uint16_t* mins = nullptr) {
    SetIntRow(row, codes, {.scales = scales, .mins = mins});
  }
  // block_rows != 1: all scales at once, [row_blocks][groups] of the kind; rows then have none.
  void SetSharedScales(const void* scales);
  // kNested: table[256], and second[blocks] for blocks from 256 * (first_block / 256) on.
  void SetNested(const float* table, const float* second);
  // Dense types: cols values of the storage type, native byte order; no alignment needed.
  void SetDenseRow(uint64_t row, const void* values);

  PackedMatrix Build() &&;

 private:
  void SetGroups(uint64_t row, const GroupRow& groups);

  PackedMatrix matrix_;
};

}  // namespace bitshard
