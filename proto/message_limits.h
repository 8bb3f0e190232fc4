// How large a message between coordinator and worker may be, and what follows for a plan.
#pragma once

#include <cstdint>

namespace bitshard {

// Either way. The largest are a RankPlan of a large model, a StepPlan with many new sequences, and
// a StepResult with log-probabilities, or a vector, of every row.
inline constexpr int kMaxFleetMessageBytes = 256 << 20;

// Of a StepPlan, for the sequences that are new in it; the rest is for its rows and their masks.
inline constexpr uint64_t kMaxEnteringBytes = kMaxFleetMessageBytes / 2;

// A token's or a block's id in a packed field, at most: seven bits a byte.
inline constexpr uint64_t kMaxIdBytes = 5;

}  // namespace bitshard
