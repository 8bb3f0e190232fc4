// Stored parts of ct_int weights with random codes, zero points and scales that a writer could have
// produced.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"

#include "kernels/base/check.h"
#include "kernels/base/float_types.h"
#include "kernels/formats/format.h"

namespace bitshard {

// The parts of a weight [rows, cols] in `name` ("ct_int5 group=32 scale=bf16 asym dense", without
// stray zero points), values about `spread` wide.
inline std::vector<std::string> RandomCtParts(const std::string& name, uint64_t rows, uint64_t cols,
                                              std::mt19937_64& random, float spread) {
  const WeightFormat* const format = FindFormat(name);
  CHECK(format != nullptr) << name;
  const float unit = spread / static_cast<float>(1 << (name[6] - '0' - 1));
  std::uniform_real_distribution<float> scale(0.5f * unit, 1.5f * unit);
  std::vector<std::string> parts;
  for (size_t i = 0; i < format->part_count(); ++i) {
    const auto shape = format->ShapeOfPart(i, rows, cols);
    CHECK_OK(shape.status());
    std::string bytes(shape->rows * shape->row_bytes, '\0');
    const size_t step = i == 1 && !absl::StrContains(name, "scale=f32") ? 2 : 4;
    for (size_t at = 0; at < bytes.size(); at += step) {
      uint32_t stored = static_cast<uint32_t>(random());
      if (i == 1) {
        const float value = random() % 50 == 0 ? 0.0f : scale(random);  // a zero scale is legal
        if (step == 4)
          std::memcpy(&stored, &value, 4);
        else
          stored = absl::StrContains(name, "scale=f16") ? F32ToF16(value) : F32ToBf16(value);
      }
      std::memcpy(bytes.data() + at, &stored, step);
    }
    parts.push_back(std::move(bytes));
  }
  return parts;
}

}  // namespace bitshard
