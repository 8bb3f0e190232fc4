#include "kernels/cpu/linear_store.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <emmintrin.h>

namespace bitshard {

int RowsOfTile(const LinearArgs& args, int64_t tile) {
  return static_cast<int>(std::min<int64_t>(kTileRows, args.n - tile * kTileRows));
}

int AddSegmentScalar(const float values[kTileRows], int rows, float limit,
                     int64_t sums[kTileRows]) {
  int poison = 0;
  for (int r = 0; r < rows; ++r) {
    if (std::fabs(values[r]) < limit) {  // false for NaN
      // F32ToFixed in one instruction of plain x86-64, under the same rounding mode.
      const int64_t fixed = _mm_cvtsd_si64(_mm_set_sd(static_cast<double>(values[r]) * 0x1p32));
      sums[r] = static_cast<int64_t>(static_cast<uint64_t>(sums[r]) + static_cast<uint64_t>(fixed));
    } else {
      ++poison;
    }
  }
  return poison;
}

void StoreValues(const LinearArgs& args, int64_t tile, int64_t row, const float values[kTileRows]) {
  std::copy(values, values + RowsOfTile(args, tile), args.y + row * args.stride + tile * kTileRows);
}

void StoreSums(const LinearArgs& args, int64_t tile, int64_t row, const int64_t sums[kTileRows],
               int64_t poison) {
  std::copy(sums, sums + RowsOfTile(args, tile), args.sums + row * args.stride + tile * kTileRows);
  AddPoison(args, row, poison);
}

void AddPoison(const LinearArgs& args, int64_t row, int64_t count) {
  if (count != 0)
    std::atomic_ref<int64_t>(args.poison[row]).fetch_add(count, std::memory_order_relaxed);
}

}  // namespace bitshard
