// Llama and what computes the same: Llama 1 to 3, SmolLM2, Mistral without a sliding window; GGUF's
// "llama".
#include <string>

#include "absl/status/status.h"

#include "coordinator/checkpoint/config.h"
#include "coordinator/models/graph_builder.h"
#include "coordinator/models/model_builder.h"

namespace bitshard {
namespace {

absl::Status BuildLlama(const ModelConfig& c, GraphBuilder& g) {
  if (absl::Status status = CheckDenseSiluDecoder(c, "llama"); !status.ok()) return status;
  using Value = GraphBuilder::Value;
  const uint64_t q_width = uint64_t{c.heads} * c.head_dim,
                 kv_width = uint64_t{c.kv_heads} * c.head_dim;

  Value x = g.Embed("model.embed_tokens", c.vocab_size, c.hidden_size);
  for (uint32_t i = 0; i < c.layers; ++i) {
    g.Layer("model.layers", i);
    Value h = g.RmsNorm(x, "input_layernorm", c.rms_norm_epsilon);
    Value q = g.Linear(h, "self_attn.q_proj", q_width, c.attention_bias);
    Value k = g.Linear(h, "self_attn.k_proj", kv_width, c.attention_bias);
    Value v = g.Linear(h, "self_attn.v_proj", kv_width, c.attention_bias);
    q = g.Rope(q, "self_attn.q_rope", c.rope, c.heads, c.head_dim);
    k = g.Rope(k, "self_attn.k_rope", c.rope, c.kv_heads, c.head_dim);
    h = g.Attention(q, k, v, {.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim});
    h = g.RowParallelLinear(h, "self_attn.o_proj", c.hidden_size, c.head_dim,
                            c.attention_output_bias);
    x = g.Add(x, h, "self_attn.residual_add");

    h = g.RmsNorm(x, "post_attention_layernorm", c.rms_norm_epsilon);
    Value gate = g.Linear(h, "mlp.gate_proj", c.intermediate_size, c.mlp_bias);
    Value up = g.Linear(h, "mlp.up_proj", c.intermediate_size, c.mlp_bias);
    h = g.GatedAct(gate, up, internal::GatedAct::SILU);
    h = g.RowParallelLinear(h, "mlp.down_proj", c.hidden_size, kMlpSegmentCols, c.mlp_bias);
    x = g.Add(x, h, "mlp.residual_add");
  }
  g.OpenScope("", "");
  x = g.RmsNorm(x, "model.norm", c.rms_norm_epsilon);
  g.LmHead(x, c.tied_embeddings ? "model.embed_tokens" : "lm_head", c.vocab_size);
  return g.status();
}

const RegisterModel kRegistered({"LlamaForCausalLM", "MistralForCausalLM", "llama"}, &BuildLlama);

}  // namespace
}  // namespace bitshard
