// What a linear kernel gets and how it registers. Included by kernels/cpu, kernels/reference and
// the binding in linear.cc.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/cpu_features.h"
#include "kernels/registry/activations.h"
#include "kernels/registry/kernel_registry.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {

// What is known at bind.
struct LinearKey {
  const PackedSpec* weight = nullptr;
  ActivationMode mode = ActivationMode::kF32;
  int64_t segment_cols = 0;  // 0: K is whole
};

// Raw pointers only: kernels compiled for a wider set call no inline code of others.
struct LinearArgs {
  // Weight, see packed_matrix.h.
  int64_t n = 0, k = 0;
  const uint8_t* codes = nullptr;
  int64_t tile_bytes = 0;  // codes of one row tile
  PackedSpec::Type type = PackedSpec::Type::kF32;
  int bits = 0;
  ScaleView scale;  // kInt: zero points and groups too

  // Activations, see activations.h. Row strides: padded_cols, padded_cols / 16 and act_groups. Run
  // sums, scales and groups are those of the kernel's form.
  int64_t m = 0, padded_cols = 0;
  const float* x = nullptr;
  const int16_t* q = nullptr;
  const int8_t* hi = nullptr;
  const int8_t* lo = nullptr;
  const int8_t* a8 = nullptr;
  const int32_t* run_sums = nullptr;
  const int32_t* pair_sums = nullptr;
  const float* act_scales = nullptr;
  int64_t act_groups = 0, act_groups_per_segment = 0;

  int64_t segment_cols = 0;  // k when it is whole
  int64_t segments = 0;

  // Exactly one of the two outputs.
  float* y = nullptr;
  int64_t* sums = nullptr;
  int64_t stride = 0;         // of y or sums
  int64_t* poison = nullptr;  // with sums; added to by atomic adds
  float limit = 0;            // a segment sum of this magnitude or more poisons

  // For the reference kernel only.
  const PackedMatrix* matrix = nullptr;
  const PreparedActivations* prepared = nullptr;
};

struct LinearKernel {
  const char* name = nullptr;
  Isa isa = Isa::kScalar;
  int cost = 0;
  unsigned form = 0;  // kFormF32, kFormA16 or kFormA8
  // Whether such weights are its business; null: all are.
  bool (*is_for)(const PackedSpec& weight) = nullptr;
  // Of a weight that it is for: empty, or why it cannot serve this.
  std::string (*refuses)(const LinearKey& key) = nullptr;
  // Computes row tiles [tile_begin, tile_end) for all rows of x.
  void (*run)(const LinearArgs& args, int64_t tile_begin, int64_t tile_end) = nullptr;
};

// For LinearKernel::is_for: one type, of integers one width.
template <PackedSpec::Type kType, int kBits = 0>
bool IsOfKind(const PackedSpec& weight) {
  return weight.type == kType && (kType != PackedSpec::Type::kInt || weight.bits == kBits);
}

// A kernel for another kind of weight would not be faster: it is not in question.
inline bool IsFor(const LinearKernel& kernel, const PackedSpec& weight) {
  return kernel.is_for == nullptr || kernel.is_for(weight);
}
// Empty, or why the kernel cannot serve this.
std::string RefusalOf(const LinearKernel& kernel, const LinearKey& key);

// Boundaries that all tile kernels need: whole runs of 16 columns between groups, segments and
// cuts. Empty, or the reason.
std::string RefusesUnalignedRuns(const LinearKey& key);

// The form that a matrix needs in this mode.
unsigned FormOf(const PackedSpec& spec, ActivationMode mode);

}  // namespace bitshard
