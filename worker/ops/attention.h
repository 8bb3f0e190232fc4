// An attention node bound to its values; for the op of its own and for the one with the rotations.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "kernels/registry/attention.h"
#include "worker/ops/bind_context.h"

namespace bitshard {

struct AttentionPart {
  SharedAttention* shared = nullptr;  // null: this rank has no heads of the layer
  uint32_t layer = 0;                 // of the cache
  AttentionValues values;
};

absl::StatusOr<AttentionPart> BindAttention(const internal::Node& node, BindContext& bind);

}  // namespace bitshard
