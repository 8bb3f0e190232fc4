// Llama-shaped checkpoints without weights: a config and the tensor index that fits it.
#pragma once

#include <string>

#include "coordinator/checkpoint/config.h"
#include "coordinator/checkpoint/tensor_index.h"

namespace bitshard {

// hidden 128, 2 layers, 8 heads and 4 KV heads of 16, MLP 320 = 5 units, vocabulary 512 = 8 units.
ModelConfig SmallLlamaConfig();

// SmolLM2-135M's sizes with `layers` layers: hidden 576, 9 heads and 3 KV heads of 64, MLP 1536,
// vocabulary 49152, tied.
ModelConfig SmolLm2Config(uint32_t layers);

// The tensors that `config` wants, one after the other in "made.gguf", matrices in `format` and
// vectors in f32. Names are canonical; the model digest is set.
TensorIndex MadeLlamaIndex(const ModelConfig& config, const std::string& format);

}  // namespace bitshard
