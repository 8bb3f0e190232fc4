// An attention node: what it asks for, and bound to its values; for the op of its own and for the
// one with the rotations.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "kernels/registry/attention.h"
#include "worker/ops/bind_context.h"

namespace bitshard {

// What an attention node asks for, checked, with its cache layer taken.
absl::StatusOr<AttentionConfig> AttentionConfigOf(const internal::Node& node, KvType cache_type,
                                                  GraphValues& bind);

struct AttentionPart {
  SharedAttention* shared = nullptr;  // null: this rank has no heads of the layer
  uint32_t layer = 0;                 // of the cache
  AttentionValues values;
};

absl::StatusOr<AttentionPart> BindAttention(const internal::Node& node, BindContext& bind);

}  // namespace bitshard
