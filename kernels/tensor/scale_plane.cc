#include "kernels/tensor/scale_plane.h"

#include <bit>
#include <cstring>

#include "kernels/base/float_types.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {
namespace {

template <typename T>
T Load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

int64_t RowOfSlot(int64_t row_tile, int slot) {
  return row_tile * kTileRows + RowOfScaleSlot(slot);
}

const uint8_t* Record(const ScaleView& view, int64_t row_tile, int64_t group) {
  return view.plane + row_tile * view.tile_bytes + group / view.record_groups * view.record_bytes;
}

// The group's part of a two-level record.
const uint8_t* SubScales(const ScaleView& view, const uint8_t* record, int64_t group) {
  const int heads = view.has_min ? 2 : 1;
  return record + heads * kTileRows * 2 +
         group % view.record_groups * kTileRows * ScaleBytes(view.kind);
}

float OneLevel(const ScaleView& view, const uint8_t* at, int64_t block) {
  switch (view.kind) {
    case ScaleKind::kF16:
      return F16ToF32(Load<uint16_t>(at));
    case ScaleKind::kBf16:
      return Bf16ToF32(Load<uint16_t>(at));
    case ScaleKind::kF32:
      return Load<float>(at);
    case ScaleKind::kE8m0:
      return E8m0ToF32(*at);
    case ScaleKind::kE4m3:
      return E4m3ToF32(*at) * view.factor;
    case ScaleKind::kNested: {
      const float product = view.table[*at] * view.second[block / kNestedBlock];
      return product + view.factor;
    }
    default:
      return 0;
  }
}

}  // namespace

float ScaleAt(const ScaleView& view, int64_t row_tile, int slot, int64_t group) {
  const int64_t row = RowOfSlot(row_tile, slot);
  if (row >= view.rows) return 0;
  const int bytes = ScaleBytes(view.kind);
  if (view.shared_rows) {
    const int64_t block =
        view.block_rows == 0 ? 0 : (row + view.first_row_offset) / view.block_rows;
    return OneLevel(view, view.plane + (block * view.groups + group) * bytes, 0);
  }
  const uint8_t* record = Record(view, row_tile, group);
  if (!IsSuper(view.kind)) {
    return OneLevel(view, record + slot * bytes, view.first_block + row * view.row_blocks + group);
  }
  const float d = F16ToF32(Load<uint16_t>(record + 2 * slot));
  const uint8_t* sub = SubScales(view, record, group);
  switch (view.kind) {
    case ScaleKind::kSuperS8:
      return d * static_cast<float>(static_cast<int8_t>(sub[slot]));
    case ScaleKind::kSuperU8Min:
      return d * static_cast<float>(sub[slot]);
    default:
      return d * static_cast<float>(sub[slot] & 15);
  }
}

float MinAt(const ScaleView& view, int64_t row_tile, int slot, int64_t group) {
  if (!view.has_min) return 0;
  const uint8_t* record = Record(view, row_tile, group);
  if (!IsSuper(view.kind)) {
    return F16ToF32(Load<uint16_t>(record + kTileRows * ScaleBytes(view.kind) + 2 * slot));
  }
  const float dmin = F16ToF32(Load<uint16_t>(record + 2 * kTileRows + 2 * slot));
  const uint8_t* sub = SubScales(view, record, group);
  const int m = view.kind == ScaleKind::kSuperU8Min ? sub[kTileRows + slot] : sub[slot] >> 4;
  return -(dmin * static_cast<float>(m));
}

int ZeroAt(const ScaleView& view, int64_t row_tile, int slot, int64_t group) {
  if (!view.has_zeros) return view.zero_point;
  const uint8_t* zeros = Record(view, row_tile, group) + kTileRows * ScaleBytes(view.kind);
  if (view.bits == 2) return static_cast<int>(Load<uint32_t>(zeros) >> (2 * slot) & 3);
  return zeros[slot];
}

void ScalesOfGroup(const ScaleView& view, int64_t row_tile, int64_t group, float scale[16]) {
  for (int slot = 0; slot < kTileRows; ++slot) scale[slot] = ScaleAt(view, row_tile, slot, group);
}

}  // namespace bitshard
