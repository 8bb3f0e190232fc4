#include "kernels/tensor/device_matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/p16x64.h"
#include "kernels/tensor/packed_sizes.h"

namespace bitshard {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint64_t kAlignment = 256;

// The longest record: two heads of f16, then two bytes a group, of groups of one column.
constexpr uint64_t kMaxRecordBytes = kTileRows * (2 + 2 + 2 * kSuperBlockCols);
// The longest unit of codes: a run of 16 columns of f32, or a tile of 8 bits.
constexpr uint64_t kMaxUnitBytes = std::max<uint64_t>(kTileRows * kLaneCols * 4, TileBytes(8));

// One place after the other in the device's order: place d of a run of scales is row
// RowOfDeviceSlot.
constexpr int RowOfDeviceSlot(int slot) { return slot / 2 + slot % 2 * 8; }

template <typename T>
void MoveRun(const uint8_t* from, uint8_t* to) {
  for (int slot = 0; slot < kTileRows; ++slot)
    std::memcpy(to + slot * sizeof(T), from + ScaleSlotOfRow(RowOfDeviceSlot(slot)) * sizeof(T),
                sizeof(T));
}

// Runs of 16 numbers of one size, `count` of them.
template <typename T>
void MoveRuns(const uint8_t*& from, uint8_t*& to, int count) {
  for (int i = 0; i < count; ++i, from += kTileRows * sizeof(T), to += kTileRows * sizeof(T))
    MoveRun<T>(from, to);
}

// One record of a row tile's scales.
void MoveRecord(const PackedSpec& spec, const uint8_t* from, uint8_t* to) {
  if (IsSuper(spec.scale)) {
    MoveRuns<uint16_t>(from, to, spec.has_min() ? 2 : 1);
    MoveRuns<uint8_t>(from, to, kSuperBlockCols / spec.group_size * ScaleBytes(spec.scale));
    return;
  }
  switch (ScaleBytes(spec.scale)) {
    case 4:
      MoveRuns<uint32_t>(from, to, 1);
      break;
    case 2:
      MoveRuns<uint16_t>(from, to, 1);
      break;
    default:
      MoveRuns<uint8_t>(from, to, 1);
  }
  if (spec.offset == ScaleOffset::kMin) MoveRuns<uint16_t>(from, to, 1);
  if (spec.offset != ScaleOffset::kZero) return;
  if (spec.bits != 2) return MoveRuns<uint8_t>(from, to, 1);
  uint32_t packed, moved = 0;
  std::memcpy(&packed, from, sizeof(packed));
  for (int slot = 0; slot < kTileRows; ++slot)
    moved |= (packed >> (2 * ScaleSlotOfRow(RowOfDeviceSlot(slot))) & 3u) << (2 * slot);
  std::memcpy(to, &moved, sizeof(moved));
}

// One tile: [word][lane] to [chunk][lane][words of the chunk].
template <int kWords>
void MoveChunk(const uint8_t* from, uint8_t* to) {
  for (int lane = 0; lane < kTileLanes; ++lane) {
    for (int word = 0; word < kWords; ++word)
      std::memcpy(to + (lane * kWords + word) * 4, from + (word * kTileLanes + lane) * 4, 4);
  }
}

void MoveTile(int bits, const uint8_t* from, uint8_t* to) {
  constexpr int kWordBytes = kTileLanes * 4;
  int word = 0;
  for (; bits - word >= 4; word += 4)
    MoveChunk<4>(from + word * kWordBytes, to + word * kWordBytes);
  if (bits - word >= 2) {
    MoveChunk<2>(from + word * kWordBytes, to + word * kWordBytes);
    word += 2;
  }
  if (word < bits) MoveChunk<1>(from + word * kWordBytes, to + word * kWordBytes);
}

// One run of 16 columns of 16-bit values: the A operand of mma.m16n8k16.
void MoveHalves(const uint8_t* from, uint8_t* to) {
  for (int lane = 0; lane < kTileLanes; ++lane) {
    for (int i = 0; i < 8; ++i, to += 2) {
      const int row = lane / 4 + i / 2 % 2 * 8;
      const int col = lane % 4 * 2 + i % 2 + i / 4 * 8;
      std::memcpy(to, from + (row * kLaneCols + LaneOfColumn(col)) * 2, 2);
    }
  }
}

// One run of 16 columns of f32: columns in their natural order.
void MoveFloats(const uint8_t* from, uint8_t* to) {
  for (int row = 0; row < kTileRows; ++row) {
    for (int col = 0; col < kLaneCols; ++col, to += 4)
      std::memcpy(to, from + (row * kLaneCols + LaneOfColumn(col)) * 4, 4);
  }
}

// A part of the blob that is made of units, and the bytes [begin, end) of the blob that are asked
// for.
struct Part {
  uint64_t at, unit_bytes, units;
};
struct Cut {
  uint64_t begin, end;
  uint8_t* out;  // of `begin`
};

// make(unit, to) writes a whole unit; those that the cut divides go through memory of their own.
template <uint64_t kMaxBytes, typename Make>
void CopyUnits(const Part& part, const Cut& cut, const Make& make) {
  if (part.unit_bytes == 0) return;
  const uint64_t begin = std::max(cut.begin, part.at);
  const uint64_t end = std::min(cut.end, part.at + part.units * part.unit_bytes);
  for (uint64_t at = begin; at < end;) {
    const uint64_t unit = (at - part.at) / part.unit_bytes;
    const uint64_t from = part.at + unit * part.unit_bytes;
    const uint64_t to = std::min(end, from + part.unit_bytes);
    uint8_t* const out = cut.out + (at - cut.begin);
    if (to - at == part.unit_bytes) {
      make(unit, out);
    } else {
      std::array<uint8_t, kMaxBytes> whole;
      make(unit, whole.data());
      std::memcpy(out, whole.data() + (at - from), to - at);
    }
    at = to;
  }
}

void CopyPlain(uint64_t at, const uint8_t* from, uint64_t bytes, const Cut& cut) {
  const uint64_t begin = std::max(cut.begin, at), end = std::min(cut.end, at + bytes);
  if (begin < end) std::memcpy(cut.out + (begin - cut.begin), from + (begin - at), end - begin);
}

// Bytes of a unit that is moved as a whole, of codes.
uint64_t UnitBytes(const PackedSpec& spec) {
  switch (spec.type) {
    case PackedSpec::Type::kInt:
      return TileBytes(spec.bits);
    case PackedSpec::Type::kF32:
      return kTileRows * kLaneCols * 4;
    default:
      return kTileRows * kLaneCols * 2;
  }
}

void CopyCodes(const PackedMatrix& matrix, const DeviceMatrixLayout& layout, const Cut& cut) {
  if (matrix.rows() == 0 || layout.tile_bytes == 0) return;
  const PackedSpec& spec = matrix.spec();
  const uint64_t bytes = static_cast<uint64_t>(layout.tile_bytes * matrix.row_tiles());
  const uint64_t unit_bytes = UnitBytes(spec);
  const uint8_t* const from = matrix.tile(0);
  CopyUnits<kMaxUnitBytes>({layout.codes, unit_bytes, bytes / unit_bytes}, cut,
                           [&](uint64_t unit, uint8_t* to) {
                             const uint8_t* const codes = from + unit * unit_bytes;
                             if (spec.type == PackedSpec::Type::kInt) {
                               MoveTile(spec.bits, codes, to);
                             } else if (spec.type == PackedSpec::Type::kF32) {
                               MoveFloats(codes, to);
                             } else {
                               MoveHalves(codes, to);
                             }
                           });
}

}  // namespace

absl::StatusOr<DeviceMatrixLayout> LayoutOnDevice(const PackedSpec& spec) {
  ASSIGN_OR_RETURN(const PackedSizes sizes, SizesOf(spec));
  DeviceMatrixLayout layout;
  layout.scales = RoundUp(sizes.code_bytes, kAlignment);
  layout.nested = RoundUp(layout.scales + sizes.scale_bytes, kAlignment);
  layout.bytes = sizes.nested_bytes > 0  ? layout.nested + sizes.nested_bytes
                 : sizes.scale_bytes > 0 ? layout.scales + sizes.scale_bytes
                                         : sizes.code_bytes;
  layout.tile_bytes = static_cast<int64_t>(sizes.tile_bytes);
  layout.record_bytes = static_cast<int64_t>(sizes.record_bytes);
  layout.scale_tile_bytes = spec.block_rows == 1 ? static_cast<int64_t>(sizes.scale_tile_bytes) : 0;
  return layout;
}

void CopyInDeviceOrder(const PackedMatrix& matrix, const DeviceMatrixLayout& layout, uint64_t begin,
                       uint64_t end, uint8_t* out) {
  CHECK(begin <= end && end <= layout.bytes)
      << "bytes [" << begin << ", " << end << ") of " << layout.bytes;
  if (begin == end) return;
  const Cut cut{begin, end, out};
  std::memset(out, 0, end - begin);  // what lies between the parts
  CopyCodes(matrix, layout, cut);
  const PackedSpec& spec = matrix.spec();
  if (spec.type != PackedSpec::Type::kInt || matrix.rows() == 0 || matrix.cols() == 0) return;
  const ScaleView view = matrix.scale_view();
  const auto record_bytes = static_cast<uint64_t>(layout.record_bytes);
  if (view.shared_rows) {
    CopyPlain(layout.scales, view.plane, spec.row_blocks() * spec.groups() * record_bytes, cut);
  } else {
    const uint64_t records =
        static_cast<uint64_t>(layout.scale_tile_bytes * matrix.row_tiles()) / record_bytes;
    CopyUnits<kMaxRecordBytes>({layout.scales, record_bytes, records}, cut,
                               [&](uint64_t record, uint8_t* to) {
                                 MoveRecord(spec, view.plane + record * record_bytes, to);
                               });
  }
  if (spec.scale == ScaleKind::kNested) {
    CopyPlain(layout.nested, reinterpret_cast<const uint8_t*>(view.table),
              layout.bytes - layout.nested, cut);
  }
}

DeviceMatrix MatrixOnDevice(const PackedSpec& spec, const DeviceMatrixLayout& layout,
                            const uint8_t* blob) {
  DeviceMatrix out;
  out.spec = spec;
  out.codes = blob + layout.codes;
  out.tile_bytes = layout.tile_bytes;
  if (out.spec.type != PackedSpec::Type::kInt) return out;
  out.scale = ScaleViewOf(spec, layout.record_bytes, layout.scale_tile_bytes);
  out.scale.plane = blob + layout.scales;
  if (out.spec.scale == ScaleKind::kNested) {
    out.scale.table = reinterpret_cast<const float*>(blob + layout.nested);
    out.scale.second = out.scale.table + kNestedBlock;
  }
  return out;
}

}  // namespace bitshard
