// Quantizing one row of activations: the part of PreparedActivations that differs by ISA.
#pragma once

#include <cstdint>

#include "kernels/registry/kernel_registry.h"

namespace bitshard {

// s below this counts as zero: quotients by subnormals lose their bits.
inline constexpr float kSmallestActivationScale = 0x1p-126f;
inline constexpr float kActivationSteps =
    32639.0f;  // 127 * 256 + 127: hi and lo both fit a signed byte
inline constexpr float kA8Steps = 127.0f;

// Columns [0, cols) of one row, natural order in, lane order out. A form whose first pointer is
// null is not wanted. What is written is padded with zeros to whole runs of 16.
struct PrepareArgs {
  const float* x = nullptr;  // [cols]
  int64_t cols = 0;
  int64_t segment_cols = 0;  // a multiple of 16, or not below cols

  float* f32 = nullptr;

  int16_t* q = nullptr;
  int8_t* hi = nullptr;
  int8_t* lo = nullptr;
  int32_t* run_sums = nullptr;   // [ceil(cols / 16)]
  int32_t* pair_sums = nullptr;  // likewise
  float* scales = nullptr;       // segment i has its groups at + i * groups_per_segment
  int64_t groups_per_segment = 0;

  int8_t* a8 = nullptr;
  int32_t* a8_run_sums = nullptr;
  float* a8_scales = nullptr;
  int64_t a8_groups_per_segment = 0;
};

struct PrepareKernel {
  const char* name = nullptr;
  Isa isa = Isa::kScalar;
  int cost = 0;
  void (*run)(const PrepareArgs& args) = nullptr;
};

}  // namespace bitshard
