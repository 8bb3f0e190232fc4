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

// Their scales (kF16, kBf16, kF32) and zero points, a record a group of a row tile; those of padded
// rows are 0.
struct SyntheticScalesLaunch {
  SyntheticSource source;
  int64_t rows = 0, groups = 0;
  int64_t first_group = 0;  // of the slice, in the whole weight
  int32_t bits = 0;
  ScaleKind kind = ScaleKind::kF16;
  bool has_zeros = false;
  int64_t record_bytes = 0, tile_bytes = 0;
  uint8_t* out = nullptr;
};
cudaError_t LaunchSyntheticScales(const SyntheticScalesLaunch& launch, cudaStream_t stream);

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
