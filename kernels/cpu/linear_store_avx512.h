// The end of a segment and of a tile in AVX-512: what linear_store.h defines, for values in slot
// order (ScaleSlotOfRow).
#pragma once

#include <cstdint>

#include "kernels/cpu/isa_region.h"
#include "kernels/cpu/linear_store.h"
#include "kernels/registry/linear_kernel.h"

namespace bitshard {
namespace {

inline unsigned SlotsOfTile(const LinearArgs& args, int64_t tile) {
  const int rows = RowsOfTile(args, tile);
  unsigned slots = 0;
  for (int r = 0; r < rows; ++r) slots |= 1u << ScaleSlotOfRow(r);
  return slots;
}

ISA_BEGIN_AVX512VNNI

ISA_INLINE __m512i Magnitude(__m512 values) {
  return _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(0x7fffffff));
}

// Which of these magnitudes reach the limit; compared as integers, a NaN is above all.
ISA_INLINE __mmask16 Poisons(__m512i magnitudes, float limit) {
  return _mm512_cmpge_epu32_mask(magnitudes, _mm512_castps_si512(_mm512_set1_ps(limit)));
}

// Values below the limit to fixed point: value * 2^32, round to even.
ISA_INLINE void GoodToFixed(__m512 values, __m512i* low, __m512i* high) {
  const __m512 scaled = _mm512_mul_ps(values, _mm512_set1_ps(0x1p32f));  // exact
  *low = _mm512_cvtps_epi64(_mm512_castps512_ps256(scaled));
  *high = _mm512_cvtps_epi64(_mm512_extractf32x8_ps(scaled, 1));
}

// Any values; those that poison become 0. Returns how many there are in `slots`, those of real
// rows.
ISA_INLINE int ToFixed(__m512 values, float limit, unsigned slots, __m512i* low, __m512i* high) {
  const __mmask16 bad = Poisons(Magnitude(values), limit);
  GoodToFixed(_mm512_maskz_mov_ps(static_cast<__mmask16>(~bad), values), low, high);
  return __builtin_popcount(bad & slots);
}

// sums[16] in slot order.
ISA_INLINE void AddFixed(__m512i low, __m512i high, int64_t* sums) {
  _mm512_store_si512(sums, _mm512_add_epi64(_mm512_load_si512(sums), low));
  _mm512_store_si512(sums + 8, _mm512_add_epi64(_mm512_load_si512(sums + 8), high));
}
ISA_INLINE int AddSegment(__m512 values, float limit, unsigned slots, int64_t* sums) {
  __m512i low, high;
  const int poison = ToFixed(values, limit, slots, &low, &high);
  AddFixed(low, high, sums);
  return poison;
}

// One tile's outputs of one row of x, from slot order.
ISA_INLINE void StoreSlots(const LinearArgs& args, int64_t tile, int64_t row, __m512 values) {
  const __m512i slot = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const int64_t rows = args.n - tile * kTileRows;
  float* out = args.y + row * args.stride + tile * kTileRows;
  values = _mm512_permutexvar_ps(slot, values);
  if (rows >= kTileRows) {
    _mm512_storeu_ps(out, values);
  } else {
    _mm512_mask_storeu_ps(out, static_cast<__mmask16>((1u << rows) - 1), values);
  }
}

ISA_INLINE void StoreSlotSums(const LinearArgs& args, int64_t tile, int64_t row, __m512i low,
                              __m512i high) {
  const __m512i first = _mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13);
  const __m512i second = _mm512_setr_epi64(2, 6, 10, 14, 3, 7, 11, 15);
  const int64_t rows = args.n - tile * kTileRows;
  int64_t* out = args.sums + row * args.stride + tile * kTileRows;
  const __m512i top = _mm512_permutex2var_epi64(low, first, high);
  const __m512i bottom = _mm512_permutex2var_epi64(low, second, high);
  if (rows >= kTileRows) {
    _mm512_storeu_si512(out, top);
    _mm512_storeu_si512(out + 8, bottom);
  } else {
    const unsigned mask = (1u << rows) - 1;
    _mm512_mask_storeu_epi64(out, static_cast<__mmask8>(mask), top);
    _mm512_mask_storeu_epi64(out + 8, static_cast<__mmask8>(mask >> 8), bottom);
  }
}

ISA_END

}  // namespace
}  // namespace bitshard
