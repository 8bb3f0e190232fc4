#include "coordinator/checkpoint/gguf_names.h"

#include <map>

namespace bitshard {
namespace {

using Names = std::map<std::string, std::string, std::less<>>;

const Names& GlobalNames() {
  static const auto* const names = new Names{
      {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
  return *names;
}

const Names& LayerNames() {
  static const auto* const names =
      new Names{{"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
                {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
                {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
                {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
                {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
                {"ffn_down", "mlp.down_proj"}};
  return *names;
}

}  // namespace

std::string CanonicalGgufName(std::string_view name) {
  const size_t last_dot = name.rfind('.');
  if (last_dot == std::string_view::npos) return std::string(name);
  const std::string_view module = name.substr(0, last_dot),
                         suffix = name.substr(last_dot);  // ".weight"
  if (const auto found = GlobalNames().find(module); found != GlobalNames().end()) {
    return found->second + std::string(suffix);
  }
  constexpr std::string_view kBlock = "blk.";
  const size_t number_end = module.find('.', kBlock.size());
  if (module.substr(0, kBlock.size()) != kBlock || number_end == std::string_view::npos)
    return std::string(name);
  const auto found = LayerNames().find(module.substr(number_end + 1));
  if (found == LayerNames().end()) return std::string(name);
  return "model.layers." + std::string(module.substr(kBlock.size(), number_end - kBlock.size())) +
         "." + found->second + std::string(suffix);
}

}  // namespace bitshard
