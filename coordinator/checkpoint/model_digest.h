// The fingerprint of a checkpoint: equal on every machine that sees the same one, different for
// another fine-tune of the same architecture.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/config.h"
#include "coordinator/checkpoint/tensor_index.h"

namespace bitshard {

// Hex SHA-256 over every field of the config and every tensor's names, shape, format, file names
// and byte ranges. Says nothing of the weights' values.
std::string IndexDigest(const ModelConfig& config, const TensorIndex& index);

// The same, and pieces of the weights themselves: the first, middle and last 512 bytes of the
// stored parts, at most 2,048 parts, evenly chosen. Training changes nearly every value, so that
// another model cannot pass for this one; a few changed bytes can. Reads under 4 MB, whatever the
// size of the model.
absl::StatusOr<std::string> ModelDigest(const ModelConfig& config, const TensorIndex& index);

}  // namespace bitshard
