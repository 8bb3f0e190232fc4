#include "coordinator/models/model_builder.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

// Filled by static initialisers of other files, hence made at first use.
std::map<std::string, BuildModelFn>& Registry() {
  static auto* const registry = new std::map<std::string, BuildModelFn>;
  return *registry;
}

// What every family needs. The config's reader has bounded the sizes; here they must be there.
absl::Status CheckSizes(const ModelConfig& c) {
  const std::pair<const char*, uint64_t> sizes[] = {
      {"hidden size", c.hidden_size},     {"intermediate size", c.intermediate_size},
      {"vocabulary size", c.vocab_size},  {"context length", c.context_length},
      {"number of layers", c.layers},     {"number of heads", c.heads},
      {"number of kv heads", c.kv_heads}, {"head dimension", c.head_dim}};
  for (const auto& [name, size] : sizes) {
    if (size == 0)
      return absl::InvalidArgumentError(absl::StrCat("the config's ", name, " is missing or 0"));
  }
  if (c.heads % c.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the config has ", c.heads, " heads for ",
                                                   c.kv_heads, " kv heads; must be a multiple"));
  }
  if (!(c.rms_norm_epsilon > 0) || c.rms_norm_epsilon >= 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the config's RMS norm epsilon is ", c.rms_norm_epsilon, ", missing or out of range"));
  }
  return absl::OkStatus();
}

}  // namespace

RegisterModel::RegisterModel(std::vector<std::string> architectures, BuildModelFn build) {
  for (const std::string& name : architectures) {
    CHECK(Registry().try_emplace(name, build).second) << name << " is registered twice";
  }
}

absl::Status CheckDenseSiluDecoder(const ModelConfig& c, std::string_view family) {
  const std::string name(family);
  if (c.experts > 0) {
    return absl::UnimplementedError(
        absl::StrCat("a ", name, " with ", c.experts, " experts is not supported"));
  }
  if (c.sliding_window > 0 && c.sliding_window < c.context_length) {
    return absl::UnimplementedError(
        absl::StrCat("a sliding window of ", c.sliding_window, " tokens is not supported"));
  }
  if (c.activation != "silu") {
    return absl::UnimplementedError(
        absl::StrCat("activation '", c.activation, "' of a ", name, "; supported is silu"));
  }
  return absl::OkStatus();
}

absl::StatusOr<internal::ModelGraph> BuildModelGraph(const ModelConfig& config,
                                                     const TensorIndex& index,
                                                     const InventTensorFn& invent) {
  const auto found = Registry().find(config.architecture);
  if (found == Registry().end()) {
    return absl::UnimplementedError(absl::StrCat("architecture '", config.architecture,
                                                 "' is not supported; supported are ",
                                                 absl::StrJoin(KnownArchitectures(), ", ")));
  }
  RETURN_IF_ERROR(CheckSizes(config));
  GraphBuilder g(index, invent);
  internal::ModelGraph& graph = g.graph();
  graph.set_family(config.architecture);
  graph.set_hidden_size(config.hidden_size);
  graph.set_vocab_size(config.vocab_size);
  graph.set_context_length(config.context_length);
  RETURN_IF_ERROR(found->second(config, g));
  return std::move(graph);
}

std::vector<std::string> KnownArchitectures() {
  std::vector<std::string> names;
  for (const auto& [name, build] : Registry()) names.push_back(name);
  return names;
}

}  // namespace bitshard
