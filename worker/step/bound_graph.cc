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
  for (const internal::Node& node : bound->graph_.nodes()) {
    ASSIGN_OR_RETURN(std::unique_ptr<Op> op, BindOp(node, *bound->context_));
    bound->ops_.push_back(std::move(op));
  }
  return bound;
}

std::vector<std::string> BoundGraph::DescribeKernels() const {
  std::map<std::string, int> nodes_by_line;
  for (size_t i = 0; i < ops_.size(); ++i) {
    const std::string kernel = ops_[i]->Describe();
    if (kernel.empty()) continue;
    ++nodes_by_line[absl::StrCat(KindName(graph_.nodes(static_cast<int>(i))), " ", kernel)];
  }
  std::vector<std::string> lines;
  for (const auto& [line, nodes] : nodes_by_line) lines.push_back(absl::StrCat(line, " x", nodes));
  return lines;
}

}  // namespace bitshard
