// What a checkpoint says about its model, in one vocabulary for every container.
//
// Filled by hf_config.cc (config.json) and gguf_config.cc (GGUF metadata). Bounded there, but a
// size that the file does not give is 0: what a family needs is checked where its graph is built,
// so that an unknown family is named first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace bitshard {

struct RopeConfig {
  enum class Pairing { kHalves, kInterleaved };
  struct Linear {
    double factor = 1;
  };
  struct Llama3 {
    double factor = 1;
    double low_freq_factor = 1;
    double high_freq_factor = 4;
    double original_context = 0;
  };
  struct Yarn {
    double factor = 1;
    double original_context = 0;
    double beta_fast = 32;
    double beta_slow = 1;
    bool truncate = true;
    double attention_factor = 1;  // computed from mscale where the file gives none
  };
  struct Divisors {
    std::string tensor;  // canonical name of a vector [rotary_dim / 2]: inv_freq[i] / f[i]
  };

  double theta = 10000;
  uint32_t rotary_dim = 0;
  Pairing pairing = Pairing::kHalves;
  std::variant<std::monostate, Linear, Llama3, Yarn, Divisors> scaling;
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM", or GGUF's own: "llama"
  uint64_t hidden_size = 0;
  uint64_t intermediate_size = 0;
  uint64_t vocab_size = 0;
  uint64_t context_length = 0;  // in tokens
  uint32_t layers = 0;
  uint32_t heads = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  double rms_norm_epsilon = 0;
  RopeConfig rope;
  bool tied_embeddings = false;  // lm_head is embed_tokens
  bool attention_bias = false;   // of q, k and v
  bool attention_output_bias = false;
  bool mlp_bias = false;
  uint64_t experts = 0;         // of a mixture of experts; 0 = dense
  std::string activation;       // "silu", "gelu_pytorch_tanh"
  uint64_t sliding_window = 0;  // keys visible to a query; 0 = all
  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;  // of the config alone; Checkpoint::eos_ids is the whole set
};

}  // namespace bitshard
