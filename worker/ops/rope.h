// What a rope node asks for; for the op of its own and for the one with the attention.
#pragma once

#include "absl/status/statusor.h"

#include "kernels/registry/rope.h"
#include "proto/graph.pb.h"
#include "worker/ops/graph_values.h"

namespace bitshard {

// Of its inputs and outputs.
absl::Status CheckRope(const internal::Node& node, const GraphValues& bind);

absl::StatusOr<RopeConfig> RopeConfigOf(const internal::Rope& spec, const GraphValues& bind);

}  // namespace bitshard
