// The sample op over logits in the host's memory or on a device.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "proto/graph.pb.h"
#include "worker/ops/graph_values.h"
#include "worker/ops/op.h"
#include "worker/sample/sampler.h"

namespace bitshard {

// Without max_outputs, world, isa, pool and edited, which are the binder's to set.
absl::StatusOr<Sampler::Options> SamplerOptionsOf(const internal::Node& node,
                                                  const GraphValues& bind);

// `logits`: of the sampled tokens when the op runs, then of those that `score_logits` computes.
absl::StatusOr<std::unique_ptr<Op>> MakeSampleOp(const Sampler::Options& options,
                                                 std::unique_ptr<RowSource> logits,
                                                 ScoreLogits* score_logits);

}  // namespace bitshard
