// Quantizing one row of activations to a16: the part of PreparedActivations that differs by ISA.
#pragma once

#include <cstdint>

#include "kernels/registry/kernel_registry.h"

namespace bitshard {

// s below this counts as zero: quotients by subnormals lose their bits.
inline constexpr float kSmallestActivationScale = 0x1p-126f;
inline constexpr float kActivationSteps =
    32639.0f;  // 127 * 256 + 127: hi and lo both fit a signed byte

// One activation group: columns in lane order, padded to whole runs of 16 with zeros.
struct PrepareArgs {
  const float* x = nullptr;  // [runs * 16]
  int runs = 0;              // 1..4
  int16_t* q = nullptr;      // [runs * 16] each
  int8_t* hi = nullptr;
  int8_t* lo = nullptr;
  int32_t* run_sums = nullptr;  // [runs]
  float* scale = nullptr;
};

struct PrepareKernel {
  const char* name = nullptr;
  Isa isa = Isa::kScalar;
  int cost = 0;
  void (*run)(const PrepareArgs& args) = nullptr;
};

}  // namespace bitshard
