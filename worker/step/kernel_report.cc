#include "worker/step/kernel_report.h"

#include <map>

#include "absl/strings/str_cat.h"

namespace bitshard {

const char* NodeKindName(const internal::Node& node) {
  const auto* field =
      internal::Node::descriptor()->FindFieldByNumber(static_cast<int>(node.op_case()));
  return field == nullptr ? "?" : field->name().c_str();
}

std::string GroupKindName(const internal::ModelGraph& graph, const NodeGroup& group) {
  std::string kind;
  for (int n = group.first; n < group.first + group.count; ++n)
    absl::StrAppend(&kind, kind.empty() ? "" : "+", NodeKindName(graph.nodes(n)));
  return kind;
}

std::vector<internal::KernelChoice> KernelReport(
    const internal::ModelGraph& graph, const std::vector<std::pair<int, KernelChoice>>& choices) {
  std::vector<internal::KernelChoice> kernels;
  std::map<std::string, size_t> known;  // by all that is said but nodes and names
  for (const auto& [index, choice] : choices) {
    const internal::Node& node = graph.nodes(index);
    internal::KernelChoice out;
    out.set_op(NodeKindName(node));
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
