#include "worker/ops/graph_values.h"

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"

namespace bitshard {

using internal::Value;

namespace {

// Sample ends the graph and nothing else samples: runners count on it.
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

absl::Status GraphValues::PlanValues(uint64_t max_step_tokens, uint64_t max_outputs,
                                     bool sums_apart) {
  RETURN_IF_ERROR(CheckFrame(graph_));
  if (vectors_.size() != static_cast<size_t>(graph_.weights_size())) {
    return absl::InvalidArgumentError(absl::StrCat("graph has ", graph_.weights_size(),
                                                   " weights, loaded are ", vectors_.size()));
  }
  ASSIGN_OR_RETURN(plan_, PlanBuffers(graph_, max_step_tokens, max_outputs, groups_, sums_apart));
  sums_apart_ = sums_apart;
  cache_layers_.resize(graph_.kv_layers());
  has_cache_layer_.resize(graph_.kv_layers(), false);
  return absl::OkStatus();
}

absl::Status GraphValues::ExpectValues(const internal::Node& node,
                                       absl::Span<const Value::Type> inputs,
                                       absl::Span<const Value::Type> outputs) const {
  auto check = [&](const google::protobuf::RepeatedField<uint32_t>& values,
                   absl::Span<const Value::Type> types, const char* what) -> absl::Status {
    if (values.size() != static_cast<int>(types.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("it has ", values.size(), " ", what, ", expected ", types.size()));
    }
    for (int i = 0; i < values.size(); ++i) {
      // PlanBuffers has checked that the values exist.
      const Value& value = graph_.values(static_cast<int>(values[i]));
      if (value.type() != types[static_cast<size_t>(i)]) {
        return absl::InvalidArgumentError(
            absl::StrCat(what, " ", i, " is ", Value::Type_Name(value.type()), ", expected ",
                         Value::Type_Name(types[static_cast<size_t>(i)])));
      }
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(check(node.inputs(), inputs, "inputs"));
  return check(node.outputs(), outputs, "outputs");
}

absl::Status GraphValues::MatrixShape(uint32_t weight, int64_t* rows, int64_t* cols) const {
  // The loader has checked the index; a graph that was not loaded here would be an invariant
  // broken.
  if (weight >= vectors_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("weight ", weight, " does not exist"));
  }
  const internal::Weight& shape = graph_.weights(static_cast<int>(weight));
  if (shape.rows() > INT32_MAX || shape.cols() > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("weight ", shape.name(), " is too large"));
  }
  *rows = static_cast<int64_t>(shape.rows());
  *cols = static_cast<int64_t>(shape.cols());
  return absl::OkStatus();
}

absl::StatusOr<const std::vector<float>*> GraphValues::HostVector(uint32_t weight,
                                                                  int64_t width) const {
  if (weight >= vectors_.size() || static_cast<int64_t>(vectors_[weight].size()) != width) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weight ", weight, " is loaded as a vector of ",
        weight < vectors_.size() ? vectors_[weight].size() : 0, " values, needed are ", width));
  }
  return &vectors_[weight];
}

absl::Status GraphValues::AddCacheLayer(uint32_t layer, const KvLayout& layout) {
  if (layer >= cache_layers_.size() || has_cache_layer_[layer]) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache layer ", layer, " of ", cache_layers_.size(),
                     layer < cache_layers_.size() ? " is used twice" : " does not exist"));
  }
  cache_layers_[layer] = layout;
  has_cache_layer_[layer] = true;
  return absl::OkStatus();
}

}  // namespace bitshard
