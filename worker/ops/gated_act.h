// A gated_act node bound to its values; for the op of its own and for the one with gate and up.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "kernels/registry/elementwise.h"
#include "proto/graph.pb.h"
#include "worker/ops/graph_values.h"

namespace bitshard {

struct GatedActPart {
  Activation activation = Activation::kSilu;
  int64_t width = 0;
  const float* gate = nullptr;  // [tokens, width] each
  const float* up = nullptr;
  float* out = nullptr;
};

absl::StatusOr<GatedActPart> BindGatedAct(const internal::Node& node, GraphValues& bind);

}  // namespace bitshard
