// A packed matrix in the order that CUDA kernels read: the same codes and scales as PackedMatrix,
// nothing expanded, the bytes of every tile in another order. Pure host code.
//
// One blob: codes, scales, nested (table[256], then second), each on a multiple of 256 bytes.
//  - Integers of b bits: tiles of 16 rows x 64 columns in the order [row tile][64 columns]; a tile
//    is 128 b bytes: its b words a lane go out in chunks of 4, 2 and 1 words (7 = 4 + 2 + 1),
//    [chunk][lane 0..31][words of the chunk], so that a warp loads 16, 8 or 4 bytes a lane,
//    coalesced. The words are those of kernels/tensor/p16x64.h.
//  - Scales: the records of kernels/tensor/scale_plane.h, each run of 16 numbers in the order
//    DeviceScaleSlot: a lane with g = lane / 4 finds rows g and g + 8 side by side.
//  - f16, bf16: [row tile][16 columns][lane][8]: lane 4g + t holds (row g; k 2t, 2t+1), (row g + 8;
//    k 2t, 2t+1), (row g; k 2t+8, 2t+9), (row g + 8; k 2t+8, 2t+9): the A operand of
//    mma.m16n8k16, 16 bytes a lane. Columns padded to 16 with zeros.
//  - f32: [row tile][16 columns][row 0..15][16], columns in their natural order.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "kernels/tensor/packed_matrix.h"

namespace bitshard {

// Where the pieces lie in the blob, and their strides.
struct DeviceMatrixLayout {
  uint64_t codes = 0, scales = 0, nested = 0;  // offsets
  uint64_t bytes = 0;                          // of the whole blob
  int64_t tile_bytes = 0;                      // codes of one row tile (16 rows, all columns)
  int64_t record_bytes = 0;                    // scale_plane.h
  int64_t scale_tile_bytes = 0;                // records of one row tile; 0 where rows share scales
};
// INVALID_ARGUMENT as PackedBytes.
absl::StatusOr<DeviceMatrixLayout> LayoutOnDevice(const PackedSpec& spec);

// What kernels get: plain pointers into the device's memory. An empty matrix has rows or cols 0.
struct DeviceMatrix {
  PackedSpec spec;
  const uint8_t* codes = nullptr;
  // Its `plane`, `table` and `second` point to the device too; slots are DeviceScaleSlot.
  ScaleView scale;
  int64_t tile_bytes = 0;

  int64_t rows() const { return static_cast<int64_t>(spec.rows); }
  int64_t cols() const { return static_cast<int64_t>(spec.cols); }
  int64_t row_tiles() const { return (rows() + kTileRows - 1) / kTileRows; }
};

// Bytes [begin, end) of the blob into out[end - begin]: a staging buffer at a time. Any cut.
void CopyInDeviceOrder(const PackedMatrix& matrix, const DeviceMatrixLayout& layout, uint64_t begin,
                       uint64_t end, uint8_t* out);

// `blob`: where it lies on the device.
DeviceMatrix MatrixOnDevice(const PackedSpec& spec, const DeviceMatrixLayout& layout,
                            const uint8_t* blob);
inline DeviceMatrix MatrixOnDevice(const PackedMatrix& matrix, const DeviceMatrixLayout& layout,
                                   const uint8_t* blob) {
  return MatrixOnDevice(matrix.spec(), layout, blob);
}

}  // namespace bitshard
