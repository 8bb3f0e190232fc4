// What a rank says it is doing, in every meeting: ranks compare it before they use each other's
// bytes.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace bitshard {

enum class OperationKind : uint8_t { kAllReduce = 1, kAllGather = 2, kBroadcast = 3 };

struct Operation {
  OperationKind kind;
  int root = 0;        // of a broadcast
  uint64_t bytes = 0;  // below 2^48
};

// One word: kind << 56 | root << 48 | bytes.
uint64_t PackOperation(const Operation& operation);

// An operation as it was told: which one since the group began, and its packed form.
struct ToldOperation {
  uint64_t sequence = 0;
  uint64_t packed = 0;
  bool operator==(const ToldOperation&) const = default;
};

// INTERNAL "ranks disagree", with what both are in.
absl::Status RanksDisagree(const ToldOperation& of_rank_0, int rank, const ToldOperation& of_rank);

}  // namespace bitshard
