// What the small kernels get and how they register.
#pragma once

#include <cstdint>

#include "kernels/registry/elementwise.h"
#include "kernels/registry/kernel_registry.h"

namespace bitshard {

struct RmsNormKernel {
  const char* name = nullptr;
  Isa isa = Isa::kScalar;
  int cost = 0;
  // One row.
  void (*run)(const float* x, const float* weight, float epsilon, int64_t width,
              float* y) = nullptr;
};

struct GatedActKernel {
  const char* name = nullptr;
  Isa isa = Isa::kScalar;
  int cost = 0;
  void (*run)(Activation activation, const float* gate, const float* up, int64_t width,
              float* out) = nullptr;
};

struct ExpKernel {
  const char* name = nullptr;
  Isa isa = Isa::kScalar;
  int cost = 0;
  void (*run)(const float* x, float shift, int64_t count, float* out) = nullptr;
};

struct SumsKernel {
  const char* name = nullptr;
  Isa isa = Isa::kScalar;
  int cost = 0;
  // One row: y = residual + (f32(sums) + bias); bias and residual may be null, y may be residual.
  void (*run)(const int64_t* sums, const float* bias, const float* residual, int64_t width,
              float* y) = nullptr;
};

}  // namespace bitshard
