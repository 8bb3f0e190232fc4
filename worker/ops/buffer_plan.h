// Where each value of a graph lies in one arena. Values that are not alive at the same time share
// memory; element-wise ops write over their first input when nobody needs it any more.
//
// Sums over ranks (SEGMENT_SUM, RAW_BITS) can have an arena of their own, for libraries that want
// to know of such memory: it is laid out alike on all ranks, whose other values differ in width.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "proto/graph.pb.h"
#include "worker/ops/fusion.h"

namespace bitshard {

struct BufferPlan {
  std::vector<uint64_t> offsets;  // by value, multiples of 64
  uint64_t arena_bytes = 0;
  uint64_t sums_bytes = 0;  // 0 unless `sums_apart`
};

bool IsSumOverRanks(const internal::Value& value);

// INVALID_ARGUMENT on a graph whose nodes read values that nothing has written, write a value
// twice, or name values that do not exist; whose logits are read by another node than Sample; or
// whose integer sums are not read by one AllReduce, which changes them. `max_outputs`: rows of a
// logits value (the output of LmHead); all others have max_step_tokens. `groups`: nodes that are
// computed together, so that their values are alive together; none: every node alone. `sums_apart`:
// offsets of sums over ranks are those in their own arena.
absl::StatusOr<BufferPlan> PlanBuffers(const internal::ModelGraph& graph, uint64_t max_step_tokens,
                                       uint64_t max_outputs,
                                       absl::Span<const NodeGroup> groups = {},
                                       bool sums_apart = false);

}  // namespace bitshard
