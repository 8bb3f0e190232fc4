// The sample op over logits in the host's memory; on a device the logits come there first.
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

// `logits`: [outputs, local vocabulary], of the sampled tokens when the op runs.
absl::StatusOr<std::unique_ptr<Op>> MakeSampleOp(const Sampler::Options& options,
                                                 const float* logits, ScoreLogits* score_logits);

}  // namespace bitshard
