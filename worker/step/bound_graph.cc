#include "worker/step/bound_graph.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/step/kernel_report.h"

namespace bitshard {

absl::StatusOr<std::unique_ptr<BoundGraph>> BoundGraph::Bind(
    const internal::ModelGraph& graph, std::shared_ptr<const LoadedWeights> weights,
    const BindContext::Options& options) {
  auto bound = std::unique_ptr<BoundGraph>(new BoundGraph(graph, std::move(weights)));
  ASSIGN_OR_RETURN(bound->context_, BindContext::Create(bound->graph_, bound->weights_->matrices,
                                                        bound->weights_->vectors, options));
  for (const NodeGroup& group : bound->context_->groups()) {
    ASSIGN_OR_RETURN(std::unique_ptr<Op> op, BindGroup(bound->graph_, group, *bound->context_));
    bound->ops_.push_back(std::move(op));
  }
  return bound;
}

std::vector<std::string> BoundGraph::OpKinds() const {
  std::vector<std::string> kinds;
  for (const NodeGroup& group : context_->groups()) kinds.push_back(GroupKindName(graph_, group));
  return kinds;
}

std::vector<internal::KernelChoice> BoundGraph::Kernels() const {
  std::vector<std::pair<int, KernelChoice>> choices;
  for (size_t i = 0; i < ops_.size(); ++i) {
    const NodeGroup& group = context_->groups()[i];
    for (int member = 0; member < group.count; ++member) {
      for (KernelChoice& choice : ops_[i]->ChoicesOf(member)) {
        choices.emplace_back(group.first + member, std::move(choice));
      }
    }
  }
  return KernelReport(graph_, choices);
}

}  // namespace bitshard
