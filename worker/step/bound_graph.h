// A graph turned into an array of ops over buffers: what StepRunner walks in every step.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/graph.pb.h"
#include "proto/worker.pb.h"
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

  // In the order in which they run; some compute several nodes.
  const std::vector<std::unique_ptr<Op>>& ops() const { return ops_; }
  // The first node of op i.
  int first_node(size_t i) const { return context_->groups()[i].first; }
  // What each op computes: "rms_norm", "linear+linear+linear".
  std::vector<std::string> OpKinds() const;
  const BindContext& context() const { return *context_; }
  // One a distinct choice, in the order of their first nodes.
  std::vector<internal::KernelChoice> Kernels() const;

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
