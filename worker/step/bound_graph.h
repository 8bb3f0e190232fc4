// A graph turned into an array of ops over buffers: what StepRunner walks in every step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/graph.pb.h"
#include "worker/load/loader.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/op.h"

namespace bitshard {

class BoundGraph {
 public:
  // Keeps copies and shares of all it needs.
  static absl::StatusOr<std::unique_ptr<BoundGraph>> Bind(
      const internal::ModelGraph& graph, std::shared_ptr<const LoadedWeights> weights,
      const BindContext::Options& options);

  const std::vector<std::unique_ptr<Op>>& ops() const { return ops_; }
  const BindContext& context() const { return *context_; }
  // One line a distinct (op, weight format, kernel), with the number of nodes.
  std::vector<std::string> DescribeKernels() const;

 private:
  BoundGraph(const internal::ModelGraph& graph, std::shared_ptr<const LoadedWeights> weights)
      : graph_(graph), weights_(std::move(weights)) {}

  const internal::ModelGraph graph_;
  const std::shared_ptr<const LoadedWeights>
      weights_;  // with the service, which may bind them again
  std::unique_ptr<BindContext> context_;
  std::vector<std::unique_ptr<Op>> ops_;
};

}  // namespace bitshard
