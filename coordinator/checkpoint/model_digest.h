// The fingerprint of a checkpoint: config and tensor index, not the weights.
#pragma once

#include <string>

#include "coordinator/checkpoint/config.h"
#include "coordinator/checkpoint/tensor_index.h"

namespace bitshard {

// Hex SHA-256 over every field of the config and every tensor's names, shape, format, file name and
// byte range.
std::string ModelDigest(const ModelConfig& config, const TensorIndex& index);

}  // namespace bitshard
