// GGUF metadata -> ModelConfig and GgufVocab.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "coordinator/checkpoint/config.h"
#include "coordinator/checkpoint/gguf.h"
#include "coordinator/checkpoint/tensor_index.h"
#include "coordinator/text/gguf_vocab.h"

namespace bitshard {

// The index tells what metadata does not: tied embeddings, biases, rope divisors.
absl::StatusOr<ModelConfig> GgufModelConfig(const GgufMetadata& metadata, const TensorIndex& index);

// Lengths that disagree and ids outside of the vocabulary are INVALID_ARGUMENT.
absl::StatusOr<GgufVocab> ReadGgufVocab(const GgufMetadata& metadata);

// eos, eot, eom, and control tokens with the names that chat models end their turns with.
// Ascending, unique.
std::vector<int32_t> GgufEndIds(const GgufVocab& vocab);

}  // namespace bitshard
