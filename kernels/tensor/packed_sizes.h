// How many bytes the parts of a packed matrix take, in the host's order and in a device's alike.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "kernels/tensor/scale_plane.h"

namespace bitshard {

struct PackedSpec;

struct PackedSizes {
  uint64_t tile_bytes = 0;  // codes of one row tile
  uint64_t code_bytes = 0;
  uint64_t record_bytes = 0;      // of the scale plane
  uint64_t scale_tile_bytes = 0;  // of one row tile
  uint64_t scale_bytes = 0;
  uint64_t nested_bytes = 0;
};

// INVALID_ARGUMENT as PackedBytes (packed_matrix.h).
absl::StatusOr<PackedSizes> SizesOf(const PackedSpec& spec);

// The view of such a matrix's scales, all but its pointers. `tile_bytes`: of one row tile's
// records. REQUIRES: type kInt.
ScaleView ScaleViewOf(const PackedSpec& spec, int64_t record_bytes, int64_t tile_bytes);

}  // namespace bitshard
