// The end of a segment and of a tile, the same for every tile kernel: plain code, called from the
// ISA regions.
#pragma once

#include <cstdint>

#include "kernels/registry/linear_kernel.h"

namespace bitshard {

// Adds one segment's values (row order) of one row of x to the tile's fixed-point sums; returns how
// many poison.
int AddSegmentScalar(const float values[kTileRows], int rows, float limit, int64_t sums[kTileRows]);

// Writes a tile's 16 outputs of one row of x, those that exist.
void StoreValues(const LinearArgs& args, int64_t tile, int64_t row, const float values[kTileRows]);
void StoreSums(const LinearArgs& args, int64_t tile, int64_t row, const int64_t sums[kTileRows],
               int64_t poison);

// Counts values of one row of x that poison; nothing for 0.
void AddPoison(const LinearArgs& args, int64_t row, int64_t count);

// Real rows of a tile, 1..16.
int RowsOfTile(const LinearArgs& args, int64_t tile);

}  // namespace bitshard
