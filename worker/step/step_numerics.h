// What a coordinator may ask of a step, checked before anything is sized from it.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/tensor/kv_layout.h"
#include "proto/graph.pb.h"
#include "proto/worker.pb.h"
#include "worker/step/slot_table.h"

namespace bitshard {

// Block size, tokens, slots and the plan's rank: INVALID_ARGUMENT or UNIMPLEMENTED, with the
// bounds.
absl::Status CheckStepNumerics(const internal::RankPlan& plan,
                               const internal::NumericsOptions& numerics);

// UNIMPLEMENTED lists the types.
absl::StatusOr<KvType> CacheTypeOf(const internal::NumericsOptions& numerics);

// Of the plan's sequences. The graph need not have been checked.
SlotLimits SlotLimitsOf(const internal::ModelGraph& graph,
                        const internal::NumericsOptions& numerics);

}  // namespace bitshard
