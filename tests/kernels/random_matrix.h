// Random packed matrices and activations with fixed seeds, for the sweeps over kernels.
#pragma once

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "kernels/base/float_types.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {

inline std::vector<float> RandomFloats(size_t count, uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(count);
  for (float& v : out) v = normal(rng);
  return out;
}

// Every row the way a builder gets it: integers with scales around 0.01, or dense values around 1.
inline PackedMatrix RandomMatrix(const PackedSpec& spec, uint32_t seed) {
  std::mt19937 rng(seed);
  PackedMatrixBuilder builder(spec);
  std::normal_distribution<float> normal;
  for (uint64_t row = 0; row < spec.rows; ++row) {
    if (spec.type == PackedSpec::Type::kInt) {
      std::vector<uint8_t> codes(spec.cols);
      std::vector<uint16_t> scales(spec.groups()), mins(spec.groups());
      for (uint8_t& c : codes) c = static_cast<uint8_t>(rng() % (1u << spec.bits));
      for (uint16_t& s : scales) s = F32ToF16(0.01f * normal(rng));
      for (uint16_t& m : mins) m = F32ToF16(0.05f * normal(rng));
      builder.SetIntRow(row, codes.data(), scales.data(), spec.has_min ? mins.data() : nullptr);
      continue;
    }
    std::vector<float> f32(spec.cols);
    std::vector<uint16_t> half(spec.cols);
    for (uint64_t k = 0; k < spec.cols; ++k) {
      f32[k] = normal(rng);
      half[k] = spec.type == PackedSpec::Type::kF16 ? F32ToF16(f32[k]) : F32ToBf16(f32[k]);
    }
    builder.SetDenseRow(row, spec.type == PackedSpec::Type::kF32
                                 ? static_cast<const void*>(f32.data())
                                 : half.data());
  }
  return std::move(builder).Build();
}

inline PackedSpec Q4Spec(uint64_t rows, uint64_t cols, int offset = 0) {
  return {.rows = rows,
          .cols = cols,
          .type = PackedSpec::Type::kInt,
          .bits = 4,
          .zero_point = 0,
          .group_size = 32,
          .has_min = true,
          .first_group_offset = offset};
}

inline PackedSpec Q8Spec(uint64_t rows, uint64_t cols, int offset = 0) {
  return {.rows = rows,
          .cols = cols,
          .type = PackedSpec::Type::kInt,
          .bits = 8,
          .zero_point = 128,
          .group_size = 32,
          .has_min = false,
          .first_group_offset = offset};
}

}  // namespace bitshard
