// Upper bounds of what a config may claim: far above any model, low enough that products of two of
// them fit into 64 bits.
#pragma once

#include <cstdint>

namespace bitshard {

inline constexpr uint64_t kMaxHiddenSize = 1 << 20;
inline constexpr uint64_t kMaxIntermediateSize = 1 << 24;
inline constexpr uint64_t kMaxVocabSize = 1 << 24;
inline constexpr uint64_t kMaxContextLength = 1 << 30;
inline constexpr uint64_t kMaxLayers = 1024;
inline constexpr uint64_t kMaxHeads = 4096;
inline constexpr uint64_t kMaxHeadDim = 4096;

}  // namespace bitshard
