// Synthetic weights in the device's order (kernels/tensor/synthetic_values.h, device_matrix.h): the
// plain host side of the kernels, without Abseil, for nvcc and g++ alike.
#pragma once

#include <cstdint>
#include <driver_types.h>

#include "kernels/tensor/scale_plane.h"
#include "kernels/tensor/synthetic_values.h"

namespace bitshard::cuda {

// Codes of integers, into [row tile][64 columns] tiles. Padded rows get 0, padded columns `zero`.
struct SyntheticCodesLaunch {
  SyntheticSource source;
  int64_t rows = 0, cols = 0;
  int32_t bits = 0;
  uint32_t zero = 0;
  uint32_t* out = nullptr;
};
cudaError_t LaunchSyntheticCodes(const SyntheticCodesLaunch& launch, cudaStream_t stream);

// Their scales with what belongs to them, a record a row tile and group or super-block; those of
// padded rows and groups are 0.
struct SyntheticScalesLaunch {
  SyntheticSource source;
  int64_t rows = 0, groups = 0;
  int64_t first_group = 0;    // SyntheticFirstGroup
  int32_t record_groups = 1;  // scale_plane.h
  int32_t bits = 0;
  ScaleKind kind = ScaleKind::kF16;
  ScaleOffset offset = ScaleOffset::kNone;
  int64_t record_bytes = 0, tile_bytes = 0;
  uint8_t* out = nullptr;
};
cudaError_t LaunchSyntheticScales(const SyntheticScalesLaunch& launch, cudaStream_t stream);

// Scales that rows share, [row_blocks][groups] of the kind.
struct SyntheticSharedLaunch {
  SyntheticSource source;
  int64_t row_blocks = 0, groups = 0;
  int64_t first_row_block = 0, first_group = 0;  // of the slice, in the whole weight
  int32_t bits = 0;
  ScaleKind kind = ScaleKind::kF16;
  uint8_t* out = nullptr;
};
cudaError_t LaunchSyntheticShared(const SyntheticSharedLaunch& launch, cudaStream_t stream);

// kNested: table[256], then `blocks` numbers of the second level from `first_block` of the whole
// on, as f32 bits.
struct SyntheticNestedLaunch {
  SyntheticSource source;
  int64_t blocks = 0, first_block = 0;
  uint32_t* out = nullptr;
};
cudaError_t LaunchSyntheticNested(const SyntheticNestedLaunch& launch, cudaStream_t stream);

// Values of a dense type (as the scales are called), into [row tile][16 columns] runs; 0 beyond
// rows and columns.
struct SyntheticValuesLaunch {
  SyntheticSource source;
  int64_t rows = 0, cols = 0;
  ScaleKind kind = ScaleKind::kF16;
  uint8_t* out = nullptr;
};
cudaError_t LaunchSyntheticValues(const SyntheticValuesLaunch& launch, cudaStream_t stream);

}  // namespace bitshard::cuda
