// Scales, minima and zero points out of a plane in the device's order: the definition of
// kernels/tensor/scale_plane.h with the slots of a device (DeviceScaleSlot).
#pragma once

#include "kernels/cuda/emu/cuda_emu.h"
#include "kernels/cuda/ptx/convert.cuh"
#include "kernels/tensor/scale_plane.h"

namespace bitshard::cuda {

__device__ __forceinline__ float HalfAt(const uint8_t* bytes, int index) {
  return HalfToFloat(reinterpret_cast<const uint16_t*>(bytes)[index]);
}

// Number `index` of those at `at`, of a kind with one level.
__device__ __forceinline__ float PlainScale(const ScaleView& view, const uint8_t* at, int64_t index,
                                            int64_t block) {
  switch (view.kind) {
    case ScaleKind::kF16:
      return HalfAt(at + 2 * index, 0);
    case ScaleKind::kBf16:
      return __uint_as_float(uint32_t{reinterpret_cast<const uint16_t*>(at)[index]} << 16);
    case ScaleKind::kF32:
      return reinterpret_cast<const float*>(at)[index];
    case ScaleKind::kE8m0: {
      const uint32_t exponent = at[index];
      if (exponent == 255) return __uint_as_float(0x7fc00000u);
      return __uint_as_float(exponent == 0 ? 0x00400000u : exponent << 23);
    }
    case ScaleKind::kE4m3:
      return HalfToFloat(static_cast<uint16_t>(CvtE4m3x2ToHalf2(at[index]))) * view.factor;
    case ScaleKind::kNested:
      // Two roundings.
      return __fadd_rn(__fmul_rn(view.table[at[index]], view.second[block / kNestedBlock]),
                       view.factor);
    default:
      return 0;
  }
}

struct GroupNumbers {
  float scale, min;
  uint32_t zero;
};

// Of one row and group. Rows beyond the last have scale 0.
__device__ __forceinline__ GroupNumbers NumbersOf(const ScaleView& view, int64_t row,
                                                  int64_t group) {
  GroupNumbers out = {0, 0, static_cast<uint32_t>(view.zero_point)};
  if (row >= view.rows) return out;
  if (view.shared_rows) {
    const int64_t block =
        view.block_rows == 0 ? 0 : (row + view.first_row_offset) / view.block_rows;
    out.scale = PlainScale(view, view.plane, block * view.groups + group, 0);
    return out;
  }
  const int slot = DeviceScaleSlot(static_cast<int>(row % 16));
  const uint8_t* const record =
      view.plane + row / 16 * view.tile_bytes + group / view.record_groups * view.record_bytes;
  const int bytes = ScaleBytes(view.kind);
  if (!IsSuper(view.kind)) {
    out.scale = PlainScale(view, record, slot, view.first_block + row * view.row_blocks + group);
    const uint8_t* const beside = record + 16 * bytes;
    if (view.has_min) out.min = HalfAt(beside, slot);
    if (view.has_zeros) {
      out.zero = view.bits == 2 ? *reinterpret_cast<const uint32_t*>(beside) >> (2 * slot) & 3u
                                : uint32_t{beside[slot]};
    }
    return out;
  }
  const uint8_t* const sub =
      record + (view.has_min ? 64 : 32) + group % view.record_groups * 16 * bytes;
  const float d = HalfAt(record, slot);
  const int code = sub[slot];
  if (view.kind == ScaleKind::kSuperS8) {
    out.scale = d * static_cast<float>(static_cast<int8_t>(code));
    return out;
  }
  const bool nibbles = view.kind == ScaleKind::kSuperU4Min;
  const int min = nibbles ? code >> 4 : sub[16 + slot];
  out.scale = d * static_cast<float>(nibbles ? code & 15 : code);
  out.min = -(HalfAt(record + 32, slot) * static_cast<float>(min));
  return out;
}

// Of rows g and g + 8 of a row tile, for the lanes of a warp (g = lane / 4).
struct PairNumbers {
  float scale[2], min[2];
  uint32_t zero[2];
};

// Walks through the groups of a row tile. Any kind.
class AnyScales {
 public:
  AnyScales() = default;
  __device__ __forceinline__ AnyScales(const ScaleView& view, int64_t row_tile, int lane, int group)
      : view_(&view), row_(row_tile * 16 + lane / 4), group_(group) {}

  __device__ __forceinline__ void Next(PairNumbers& out) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const GroupNumbers numbers = NumbersOf(*view_, row_ + 8 * half, group_);
      out.scale[half] = numbers.scale;
      out.min[half] = numbers.min;
      out.zero[half] = numbers.zero;
    }
    ++group_;
  }

 private:
  const ScaleView* view_ = nullptr;
  int64_t row_ = 0;
  int group_ = 0;
};

// Of kF16 and kBf16, a row each, as stored: two scales; two minima, or two zero points in the low
// bits.
struct StoredHalves {
  uint32_t scales, beside;
};

__device__ __forceinline__ StoredHalves LoadHalves(const ScaleView& view, const uint8_t* record,
                                                   int lane) {
  const int g = lane / 4;
  StoredHalves stored = {reinterpret_cast<const uint32_t*>(record)[g], 0};
  const uint8_t* const beside = record + 32;
  if (view.has_min) stored.beside = reinterpret_cast<const uint32_t*>(beside)[g];
  if (view.has_zeros) {
    stored.beside = view.bits == 2 ? *reinterpret_cast<const uint32_t*>(beside) >> (4 * g)
                                   : uint32_t{reinterpret_cast<const uint16_t*>(beside)[g]};
  }
  return stored;
}

__device__ __forceinline__ float LowHalf(uint32_t bits) {
  return HalfToFloat(static_cast<uint16_t>(bits));
}

__device__ __forceinline__ void ExpandHalves(const ScaleView& view, const StoredHalves& stored,
                                             PairNumbers& out) {
  const bool bf16 = view.kind == ScaleKind::kBf16;
  const uint32_t scales = stored.scales, beside = stored.beside;
  out.scale[0] = bf16 ? __uint_as_float(scales << 16) : LowHalf(scales);
  out.scale[1] = bf16 ? __uint_as_float(scales & 0xffff0000u) : LowHalf(scales >> 16);
  if (view.has_min) {
    out.min[0] = LowHalf(beside);
    out.min[1] = LowHalf(beside >> 16);
  }
  out.zero[0] = out.zero[1] = static_cast<uint32_t>(view.zero_point);
  if (view.has_zeros) {
    const int width = view.bits == 2 ? 2 : 8;
    const uint32_t mask = (1u << width) - 1;
    out.zero[0] = beside & mask;
    out.zero[1] = beside >> width & mask;
  }
}

}  // namespace bitshard::cuda
