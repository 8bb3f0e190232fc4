// The model families by architecture name, and the one way from a config to a graph.
//
// A family is one file in this folder: a function that says with a GraphBuilder what the model
// computes, registered before main under the names that checkpoints use ("LlamaForCausalLM", GGUF's
// "llama").
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "coordinator/checkpoint/config.h"
#include "coordinator/checkpoint/tensor_index.h"
#include "coordinator/models/graph_builder.h"
#include "proto/graph.pb.h"

namespace bitshard {

using BuildModelFn = absl::Status (*)(const ModelConfig& config, GraphBuilder& g);

struct RegisterModel {
  RegisterModel(std::vector<std::string> architectures, BuildModelFn build);
};

// For families of dense decoders with full attention and SiLU: UNIMPLEMENTED when the config has
// experts, a sliding window below its context, or another activation.
absl::Status CheckDenseSiluDecoder(const ModelConfig& config, std::string_view family);

// The whole model, uncut: a row-parallel Linear feeds its consumer directly, there is no AllReduce
// yet. UNIMPLEMENTED for an unknown architecture (lists the known ones) or a tensor in a format
// that cannot be loaded (lists the formats); INVALID_ARGUMENT when a tensor is missing or its shape
// contradicts the config; with `invent` also its errors.
absl::StatusOr<internal::ModelGraph> BuildModelGraph(const ModelConfig& config,
                                                     const TensorIndex& index,
                                                     const InventTensorFn& invent = nullptr);

// Sorted.
std::vector<std::string> KnownArchitectures();

}  // namespace bitshard
