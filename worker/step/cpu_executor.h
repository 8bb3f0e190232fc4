// The graph on the CPU: ops (worker/ops) over a cache in the host's memory.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "proto/graph.pb.h"
#include "worker/load/loader.h"
#include "worker/ops/bind_context.h"
#include "worker/step/graph_executor.h"

namespace bitshard {

// `profile` may be null, else it outlives the executor. UNIMPLEMENTED names a node kind it does not
// know, RESOURCE_EXHAUSTED says how much memory the buffers need.
absl::StatusOr<std::unique_ptr<GraphExecutor>> MakeCpuExecutor(
    const internal::ModelGraph& graph, std::shared_ptr<const LoadedWeights> weights,
    const BindContext::Options& options, StepProfile* profile);

}  // namespace bitshard
