// What an lm_head node asks for, checked; for the CPU's op and for that of a device.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "proto/graph.pb.h"
#include "worker/ops/graph_values.h"

namespace bitshard {

struct LmHeadShape {
  int64_t rows = 0;  // this rank's part of the vocabulary, may be 0
  int64_t hidden = 0;
};

absl::StatusOr<LmHeadShape> CheckLmHead(const internal::Node& node, const GraphValues& bind);

}  // namespace bitshard
