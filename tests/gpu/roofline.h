// How close linear kernels and attention come to the device's own copy rate, measured in the same
// run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/tensor/device.h"
#include "kernels/tensor/kv_layout.h"
#include "kernels/tensor/packed_matrix.h"

namespace bitshard {

// One line of the table. Bytes are the formula's: what must be read and written once, however the
// kernel does it.
struct RooflineLine {
  std::string what;  // "int4 zero=8 group=128 scale=f16 14336x4096 m=1"
  uint64_t bytes = 0;
  double seconds = 0;  // of one launch: the median of the repetitions
  double spread = 0;   // (largest - smallest) / median
  double share = 0;    // of the copy rate
};

struct RooflineSize {
  uint64_t rotate_bytes = 0;  // copies of the weights that one after the other are read
  uint64_t copy_bytes = 0;
  int repetitions = 1;
};
// So much that no cache holds it.
inline constexpr RooflineSize kRooflineSize = {uint64_t{192} << 20, uint64_t{2} << 30, 9};

// Bytes read and written a second by device-to-device copies.
absl::StatusOr<double> MeasureCopyRate(Device& device, const RooflineSize& size);

// y = w x for m rows of x, the weights rotated, launched from a graph.
absl::StatusOr<RooflineLine> MeasureLinear(Device& device, const PackedSpec& spec, int m,
                                           double copy_rate, const RooflineSize& size);

// Decode: `sequences` queries of q_heads heads, each with `context` positions behind it.
absl::StatusOr<RooflineLine> MeasureAttention(Device& device, const KvLayout& layout, int q_heads,
                                              int sequences, int64_t context, double copy_rate,
                                              const RooflineSize& size);

// "what<tab>bytes<tab>us<tab>GB/s<tab>share<tab>spread"
std::string RooflineHead();
std::string RooflineText(const RooflineLine& line);

}  // namespace bitshard
