// Runs ptx_vectors.h on a device, keeps what came out in a file, compares two such results.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/tensor/device.h"

namespace bitshard {

inline constexpr int kPtxWarps = 128;
inline constexpr int kWgmmaVectorBlocks = 4;
size_t PtxWords();       // without the warpgroup's
size_t WgmmaPtxWords();  // of these

// Output words of all lanes, of inputs with a fixed seed; behind them those of warpgroups, on
// sm_90.
absl::StatusOr<std::vector<uint32_t>> RunPtxVectors(Device& device);

struct PtxDifference {
  std::string field;
  int64_t words = 0;
  int64_t unequal = 0;  // words whose bits differ
  int64_t beyond = 0;   // of these, those beyond the field's tolerance
  double largest = 0;   // absolute or relative as the field is compared; exact fields: 0
  // Of float fields, over all words: how many floats lie between the two values.
  uint64_t largest_ulps = 0;
  double mean_ulps = 0;
  std::string first = "";  // where the first one beyond is, with both values
};

// How many steps from one f32 to the next lie between two; of a NaN and a number UINT32_MAX.
uint32_t UlpsApart(uint32_t a_bits, uint32_t b_bits);

// One entry a field, and one for warpgroups where both have them. REQUIRES: both are results of
// RunPtxVectors.
std::vector<PtxDifference> ComparePtxVectors(absl::Span<const uint32_t> ours,
                                             absl::Span<const uint32_t> theirs);

// "field<tab>words<tab>unequal<tab>beyond<tab>largest<tab>largest ulps<tab>mean ulps<tab>first"
std::string PtxHead();
std::string PtxText(const PtxDifference& difference);

// The words as they are. DATA_LOSS for a file that is no result of RunPtxVectors.
absl::Status WritePtxFile(const std::string& path, absl::Span<const uint32_t> words);
absl::StatusOr<std::vector<uint32_t>> ReadPtxFile(const std::string& path);

}  // namespace bitshard
