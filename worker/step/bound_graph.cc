#include "worker/step/bound_graph.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

const char* KindName(const internal::Node& node) {
  const auto* field =
      internal::Node::descriptor()->FindFieldByNumber(static_cast<int>(node.op_case()));
  return field == nullptr ? "?" : field->name().c_str();
}

// Sample ends the graph and nothing else samples: the runner counts on it.
absl::Status CheckFrame(const internal::ModelGraph& graph) {
  const int nodes = graph.nodes_size();
  for (int n = 0; n < nodes; ++n) {
    const bool is_sample = graph.nodes(n).has_sample();
    if (is_sample != (n == nodes - 1)) {
      return absl::InvalidArgumentError("graph: exactly its last node must be Sample");
    }
  }
  if (nodes == 0) return absl::InvalidArgumentError("graph: it has no nodes");
  if (graph.vocab_size() == 0 || graph.vocab_size() > INT32_MAX || graph.context_length() == 0 ||
      graph.context_length() > INT32_MAX || graph.kv_layers() > 65536) {
    return absl::InvalidArgumentError(absl::StrCat("graph: vocabulary of ", graph.vocab_size(),
                                                   ", context of ", graph.context_length(), ", ",
                                                   graph.kv_layers(), " cache layers"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<BoundGraph>> BoundGraph::Bind(
    const internal::ModelGraph& graph, std::shared_ptr<const LoadedWeights> weights,
    const BindContext::Options& options) {
  RETURN_IF_ERROR(CheckFrame(graph));
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
  for (const NodeGroup& group : context_->groups()) {
    std::string kind;
    for (int n = group.first; n < group.first + group.count; ++n) {
      absl::StrAppend(&kind, kind.empty() ? "" : "+", KindName(graph_.nodes(n)));
    }
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

std::vector<internal::KernelChoice> BoundGraph::Kernels() const {
  std::vector<internal::KernelChoice> kernels;
  std::map<std::string, size_t> known;                // by all that is said but nodes and names
  std::vector<std::pair<int, KernelChoice>> choices;  // by node
  for (size_t i = 0; i < ops_.size(); ++i) {
    const NodeGroup& group = context_->groups()[i];
    for (int member = 0; member < group.count; ++member) {
      for (KernelChoice& choice : ops_[i]->ChoicesOf(member)) {
        choices.emplace_back(group.first + member, std::move(choice));
      }
    }
  }
  for (const auto& [index, choice] : choices) {
    const internal::Node& node = graph_.nodes(index);
    internal::KernelChoice out;
    out.set_op(KindName(node));
    out.set_format(choice.format);
    out.set_kernel(choice.kernel);
    out.set_activations(choice.activations);
    out.set_fallback(IsFallback(choice));
    for (const RefusedKernel& refused : choice.refused) {
      internal::RefusedChoice& one = *out.add_refused();
      one.set_kernel(refused.kernel);
      one.set_reason(refused.reason);
    }
    const auto [entry, is_new] = known.emplace(out.SerializeAsString(), kernels.size());
    if (is_new) {
      out.set_first_node(node.name());
      kernels.push_back(std::move(out));
    }
    internal::KernelChoice& kept = kernels[entry->second];
    kept.set_nodes(kept.nodes() + 1);
  }
  return kernels;
}

}  // namespace bitshard
