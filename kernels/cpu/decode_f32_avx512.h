// Weights to f32 in AVX-512, a run of 16 columns of a row tile at a time: codes through their
// group's numbers, dense types as they are.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/scale_plane_avx512.h"
#include "kernels/registry/linear_kernel.h"

namespace bitshard {
namespace {

using Type = PackedSpec::Type;

// A tile's groups along K, run by run.
struct GroupWalk {
  int64_t group = 0, group_runs = 0, end = INT64_MAX;  // the run behind the group
};

inline GroupWalk FirstGroup(const LinearArgs& args) {
  GroupWalk walk;
  if (args.scale.groups <= 1) return walk;
  walk.group_runs = args.scale.group_size / kLaneCols;
  const int64_t offset_runs = args.scale.first_group_offset / kLaneCols;
  walk.group = offset_runs / walk.group_runs;
  walk.end = (walk.group + 1) * walk.group_runs - offset_runs;
  return walk;
}

inline void NextGroup(GroupWalk& walk) { ++walk.group, walk.end += walk.group_runs; }

// Groups that runs [run, end) touch; the first is walk's.
inline int GroupsOf(const GroupWalk& walk, int64_t end) {
  if (end <= walk.end) return 1;
  return static_cast<int>(1 + (end - walk.end + walk.group_runs - 1) / walk.group_runs);
}

ISA_BEGIN_AVX512VNNI

struct GroupVectors {
  __m512 scale, min, zero;
};

ISA_INLINE GroupVectors Vectors(const ScaleView& view, const GroupNumbers& numbers) {
  GroupVectors v;
  v.scale = _mm512_load_ps(numbers.scale);
  v.min = view.has_min ? _mm512_load_ps(numbers.min) : _mm512_setzero_ps();
  // 2^23 + zero: what a code is subtracted from, see Decode.
  const __m512i zero =
      view.has_zeros ? _mm512_load_si512(numbers.zero) : _mm512_set1_epi32(view.zero_point);
  v.zero = _mm512_castsi512_ps(_mm512_or_si512(zero, _mm512_set1_epi32(0x4b000000)));
  return v;
}

// Byte `byte` of every lane of `columns` to values. A code in the low bits of 2^23 is exact, and so
// is the difference.
template <int kByte, bool kMin>
ISA_INLINE __m512 Decode(__m512i columns, const GroupVectors& group) {
  const __m512i shifted = kByte == 0 ? columns : _mm512_srli_epi32(columns, 8 * kByte);
  const __m512i code = _mm512_ternarylogic_epi32(shifted, _mm512_set1_epi32(255),
                                                 _mm512_set1_epi32(0x4b000000), 0xea);
  const __m512 centred = _mm512_sub_ps(_mm512_castsi512_ps(code), group.zero);
  return kMin ? _mm512_fmadd_ps(centred, group.scale, group.min)
              : _mm512_mul_ps(centred, group.scale);
}

// values[place] of one run, 16 rows each.
template <bool kMin>
ISA_INLINE void DecodeRun(const __m512i columns[4], const GroupVectors& group, __m512 values[16]) {
  ISA_UNROLL
  for (int t = 0; t < 4; ++t) {
    values[4 * t] = Decode<0, kMin>(columns[t], group);
    values[4 * t + 1] = Decode<1, kMin>(columns[t], group);
    values[4 * t + 2] = Decode<2, kMin>(columns[t], group);
    values[4 * t + 3] = Decode<3, kMin>(columns[t], group);
  }
}

template <Type kType>
ISA_INLINE __m512 LoadDense(const uint8_t* tile, int64_t run, int row) {
  const int64_t at = run * (kTileRows * kLaneCols) + row * kLaneCols;
  if constexpr (kType == Type::kF32) {
    return _mm512_loadu_ps(reinterpret_cast<const float*>(tile) + at);
  } else {
    const __m256i bits = _mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(reinterpret_cast<const uint16_t*>(tile) + at));
    return kType == Type::kF16
               ? _mm512_cvtph_ps(bits)
               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
}

// From a vector a row to a vector a place, rows in slot order.
ISA_INLINE void TransposeRows(const __m512 rows[16], __m512 values[16]) {
  __m512 quads[4][4];  // [place % 4][rows q, q + 4, q + 8, q + 12]: 128 bits a place
  ISA_UNROLL
  for (int q = 0; q < 4; ++q) {
    const __m512 ab_low = _mm512_unpacklo_ps(rows[q], rows[q + 4]);
    const __m512 ab_high = _mm512_unpackhi_ps(rows[q], rows[q + 4]);
    const __m512 cd_low = _mm512_unpacklo_ps(rows[q + 8], rows[q + 12]);
    const __m512 cd_high = _mm512_unpackhi_ps(rows[q + 8], rows[q + 12]);
    quads[0][q] = _mm512_shuffle_ps(ab_low, cd_low, 0x44);
    quads[1][q] = _mm512_shuffle_ps(ab_low, cd_low, 0xee);
    quads[2][q] = _mm512_shuffle_ps(ab_high, cd_high, 0x44);
    quads[3][q] = _mm512_shuffle_ps(ab_high, cd_high, 0xee);
  }
  ISA_UNROLL
  for (int e = 0; e < 4; ++e) {
    const __m512 a = _mm512_shuffle_f32x4(quads[e][0], quads[e][1], 0x44);
    const __m512 b = _mm512_shuffle_f32x4(quads[e][2], quads[e][3], 0x44);
    const __m512 c = _mm512_shuffle_f32x4(quads[e][0], quads[e][1], 0xee);
    const __m512 d = _mm512_shuffle_f32x4(quads[e][2], quads[e][3], 0xee);
    values[e] = _mm512_shuffle_f32x4(a, b, 0x88);
    values[4 + e] = _mm512_shuffle_f32x4(a, b, 0xdd);
    values[8 + e] = _mm512_shuffle_f32x4(c, d, 0x88);
    values[12 + e] = _mm512_shuffle_f32x4(c, d, 0xdd);
  }
}

ISA_END

}  // namespace
}  // namespace bitshard
