#include "kernels/cpu/linear_store.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/registry/reduction.h"

namespace bitshard {

int RowsOfTile(const LinearArgs& args, int64_t tile) {
  return static_cast<int>(std::min<int64_t>(kTileRows, args.n - tile * kTileRows));
}

int AddSegmentScalar(const float values[kTileRows], int rows, float limit, int64_t sums[kTileRows]) {
  int poison = 0;
  for (int r = 0; r < rows; ++r) {
    if (std::fabs(values[r]) < limit) {  // false for NaN
      sums[r] = static_cast<int64_t>(static_cast<uint64_t>(sums[r]) + static_cast<uint64_t>(F32ToFixed(values[r])));
    } else {
      ++poison;
    }
  }
  return poison;
}

void StoreValues(const LinearArgs& args, int64_t tile, int64_t row, const float values[kTileRows]) {
  std::copy(values, values + RowsOfTile(args, tile), args.y + row * args.stride + tile * kTileRows);
}

void StoreSums(const LinearArgs& args, int64_t tile, int64_t row, const int64_t sums[kTileRows], int64_t poison) {
  std::copy(sums, sums + RowsOfTile(args, tile), args.sums + row * args.stride + tile * kTileRows);
  if (poison != 0) std::atomic_ref<int64_t>(args.poison[row]).fetch_add(poison, std::memory_order_relaxed);
}

}  // namespace bitshard
