// An rms_norm node bound to its values; for the op of its own and for fused ones.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "proto/graph.pb.h"
#include "worker/ops/graph_values.h"

namespace bitshard {

struct RmsNormPart {
  const float* x = nullptr;  // [tokens, width]
  const float* weight = nullptr;
  float epsilon = 0;
  int64_t width = 0;
  float* y = nullptr;  // [tokens, width]
};

absl::StatusOr<RmsNormPart> BindRmsNorm(const internal::Node& node, GraphValues& bind);

}  // namespace bitshard
