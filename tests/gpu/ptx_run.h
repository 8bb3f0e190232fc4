// Runs ptx_vectors.h on a device, keeps what came out in a file, compares two such results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/tensor/device.h"

namespace bitshard {

inline constexpr int kPtxWarps = 128;

// Output words of all lanes, of inputs with a fixed seed.
absl::StatusOr<std::vector<uint32_t>> RunPtxVectors(Device& device);

struct PtxDifference {
  std::string field;
  int64_t words = 0;
  int64_t unequal = 0;     // words whose bits differ
  int64_t beyond = 0;      // of these, those beyond the field's tolerance
  double largest = 0;      // absolute or relative as the field is compared; exact fields: 0
  std::string first = "";  // where the first one beyond is, with both values
};

// One entry a field. REQUIRES: both are results of RunPtxVectors.
std::vector<PtxDifference> ComparePtxVectors(absl::Span<const uint32_t> ours,
                                             absl::Span<const uint32_t> theirs);

}  // namespace bitshard
