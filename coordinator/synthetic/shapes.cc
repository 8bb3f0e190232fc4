#include "coordinator/synthetic/shapes.h"

#include <cstdint>

#include "coordinator/checkpoint/json.h"

namespace bitshard {
namespace {

enum class Family { kLlama, kLlama31, kQwen2 };

struct Shape {
  const char* name;
  Family family;
  uint32_t hidden, layers, heads, kv_heads, mlp, vocabulary, context;
  double rope_theta;
  bool tied;
};

// From the models' own config.json.
constexpr Shape kShapes[] = {
    {"smollm2-135m", Family::kLlama, 576, 30, 9, 3, 1536, 49152, 8192, 1e5, true},
    {"qwen2.5-0.5b", Family::kQwen2, 896, 24, 14, 2, 4864, 151936, 32768, 1e6, true},
    {"llama-3.2-1b", Family::kLlama31, 2048, 16, 32, 8, 8192, 128256, 131072, 5e5, true},
    {"qwen2.5-1.5b", Family::kQwen2, 1536, 28, 12, 2, 8960, 151936, 32768, 1e6, true},
    {"llama-3.2-3b", Family::kLlama31, 3072, 28, 24, 8, 8192, 128256, 131072, 5e5, true},
    {"qwen2.5-7b", Family::kQwen2, 3584, 28, 28, 4, 18944, 152064, 32768, 1e6, false},
    {"llama-3.1-8b", Family::kLlama31, 4096, 32, 32, 8, 14336, 128256, 131072, 5e5, false},
    {"qwen2.5-32b", Family::kQwen2, 5120, 64, 40, 8, 27648, 152064, 32768, 1e6, false},
    {"llama-3.1-70b", Family::kLlama31, 8192, 80, 64, 8, 28672, 128256, 131072, 5e5, false},
    {"qwen2.5-72b", Family::kQwen2, 8192, 80, 64, 8, 29568, 152064, 32768, 1e6, false},
};

Json ConfigOf(const Shape& s) {
  const bool qwen = s.family == Family::kQwen2;
  Json config = {{"architectures", Json::array({qwen ? "Qwen2ForCausalLM" : "LlamaForCausalLM"})},
                 {"torch_dtype", "bfloat16"},
                 {"hidden_size", s.hidden},
                 {"num_hidden_layers", s.layers},
                 {"num_attention_heads", s.heads},
                 {"num_key_value_heads", s.kv_heads},
                 {"intermediate_size", s.mlp},
                 {"vocab_size", s.vocabulary},
                 {"max_position_embeddings", s.context},
                 {"rope_theta", s.rope_theta},
                 {"rms_norm_eps", qwen ? 1e-6 : 1e-5},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", s.tied}};
  if (s.family == Family::kLlama31) {
    const bool small = s.hidden < 4096;  // those of version 3.2
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", small ? 32.0 : 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
  }
  return config;
}

}  // namespace

std::optional<std::string> ConfigOfShape(std::string_view name) {
  for (const Shape& shape : kShapes) {
    if (name == shape.name) return ConfigOf(shape).dump();
  }
  return std::nullopt;
}

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

}  // namespace bitshard
