// How the scales of an integer matrix are stored beside its codes: as the checkpoint has them,
// never rounded, never expanded. value = (code - zero) * scale, or fma(code - zero, scale, min), in
// f32.
//
// Groups run along the columns. The plane of a row tile is a run of records; a record holds the
// numbers of the tile's 16 rows, in slot order (ScaleSlotOfRow), for one group or, in two-level
// kinds, for one super-block of 256 columns:
//   kF16, kBf16, kF32   scale[16]
//   kE8m0               u8 e[16]: scale = 2^(e - 127)
//   kE4m3               u8 c[16]: scale = e4m3(c) * multiplier
//   kNested             u8 i[16]: scale = table[i] * second[block / 256] + addend, two roundings;
//                       block counts the groups of the whole source matrix, row-major
//                       (bitsandbytes)
//   kSuperS8            f16 d[16], then for each group i8 s[16]: scale = d * s (exact)
//   kSuperU8Min         f16 d[16], f16 dmin[16], then for each group u8 s[16], u8 m[16]:
//                       scale = d * s, min = -(dmin * m) (exact)
//   kSuperU4Min         the same with one byte: s in the low, m in the high nibble
// followed, in one-level kinds, by what `offset` says: kMin f16 min[16]; kZero u8 zero[16], or for
// codes of 2 bits one u32 with the zero of slot s at bits 2 s.
//
// Scales that many rows share (2-D blocks, one for the whole tensor) are not repeated: the plane is
// then [block of rows][group] numbers of the kind, without offset.
#pragma once

#include <cstdint>

namespace bitshard {

inline constexpr int kSuperBlockCols = 256;
inline constexpr int kNestedBlock = 256;

enum class ScaleKind : uint8_t {
  kF16,
  kBf16,
  kF32,
  kE8m0,
  kE4m3,
  kNested,
  kSuperS8,
  kSuperU8Min,
  kSuperU4Min,
};

// What a group has beside its scale; kNone in two-level kinds, which have minima of their own.
enum class ScaleOffset : uint8_t { kNone, kMin, kZero };

inline constexpr bool IsSuper(ScaleKind kind) { return kind >= ScaleKind::kSuperS8; }

// Bytes of one scale in the plane; in two-level kinds of one group's part of it.
inline constexpr int ScaleBytes(ScaleKind kind) {
  switch (kind) {
    case ScaleKind::kF32:
      return 4;
    case ScaleKind::kF16:
    case ScaleKind::kBf16:
    case ScaleKind::kSuperU8Min:
      return 2;
    default:
      return 1;
  }
}

// Place of row r % 16 in a run of scales in the order of devices (device_matrix.h).
inline constexpr int DeviceScaleSlot(int r) { return 2 * (r % 8) + r % 16 / 8; }

// A plane as kernels see it: plain pointers, valid as long as the matrix.
struct ScaleView {
  ScaleKind kind = ScaleKind::kF16;
  ScaleOffset offset = ScaleOffset::kNone;
  bool has_min = false;      // a minimum enters: kMin or a two-level kind with minima
  bool has_zeros = false;    // zero points by group and row; otherwise `zero_point` is for all
  bool shared_rows = false;  // 2-D blocks or one scale for all
  int bits = 0;              // of the codes
  int zero_point = 0;
  int group_size = 0;
  int first_group_offset = 0;  // columns before column 0 that the first record covers
  int record_groups = 1;       // groups of a record: 256 / group_size in two-level kinds
  int64_t record_bytes = 0;
  int64_t tile_bytes = 0;  // of one row tile's records
  int64_t rows = 0;        // real ones; those of the last tile beyond have scale 0
  const uint8_t* plane = nullptr;

  // kE4m3's multiplier, kNested's addend.
  float factor = 1;
  // kNested: table[256]; block of row r, group g = first_block + r * row_blocks + g.
  const float* table = nullptr;
  const float* second = nullptr;
  int64_t first_block = 0, row_blocks = 0;
  // shared_rows: rows of a block, rows of the first block before row 0, groups of a row.
  int64_t block_rows = 0, first_row_offset = 0, groups = 0;
};

// The definition: one row (`slot` of `row_tile`), one group. Group g covers columns
// [g * group_size - first_group_offset, ...).
float ScaleAt(const ScaleView& view, int64_t row_tile, int slot, int64_t group);
float MinAt(const ScaleView& view, int64_t row_tile, int slot, int64_t group);  // 0 without minima
int ZeroAt(const ScaleView& view, int64_t row_tile, int slot, int64_t group);

// The same for the 16 slots of a tile; for kinds that kernels have no vector code for.
void ScalesOfGroup(const ScaleView& view, int64_t row_tile, int64_t group, float scale[16]);

}  // namespace bitshard
