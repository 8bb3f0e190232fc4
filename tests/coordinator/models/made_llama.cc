#include "tests/coordinator/models/made_llama.h"

#include "coordinator/checkpoint/model_digest.h"
#include "kernels/base/check.h"
#include "kernels/formats/format.h"

namespace bitshard {
namespace {

class IndexMaker {
 public:
  explicit IndexMaker(std::string format) : format_(std::move(format)) {
    index_.AddFile({.path = "/made/made.gguf"});
  }

  void Matrix(const std::string& name, uint64_t rows, uint64_t cols) {
    Add(name, format_, {rows, cols});
  }
  void Vector(const std::string& name, uint64_t cols) { Add(name, "f32", {cols}); }
  TensorIndex Take() { return std::move(index_); }

 private:
  void Add(const std::string& name, const std::string& format, std::vector<uint64_t> shape) {
    const uint64_t rows = shape.size() == 2 ? shape[0] : 1, cols = shape.back();
    const WeightFormat* const made = FindFormat(format);
    CHECK(made != nullptr) << format;
    std::vector<TensorPart> parts;
    for (size_t i = 0; i < made->part_count(); ++i) {
      const auto stored = made->ShapeOfPart(i, rows, cols);
      CHECK_OK(stored.status());
      parts.push_back({.source_name = "made." + name,
                       .file = 0,
                       .offset = offset_,
                       .bytes = stored->rows * stored->row_bytes});
      offset_ += parts.back().bytes;
    }
    CHECK_OK(index_.Add({.name = name,
                         .format = format,
                         .shape = std::move(shape),
                         .rows = rows,
                         .cols = cols,
                         .parts = std::move(parts)}));
  }

  const std::string format_;
  TensorIndex index_;
  uint64_t offset_ = 4096;
};

}  // namespace

ModelConfig SmallLlamaConfig() {
  ModelConfig config;
  config.architecture = "llama";
  config.hidden_size = 128;
  config.intermediate_size = 320;
  config.vocab_size = 512;
  config.context_length = 2048;
  config.layers = 2;
  config.heads = 8;
  config.kv_heads = 4;
  config.head_dim = 16;
  config.rms_norm_epsilon = 1e-5;
  config.rope.rotary_dim = 16;
  config.activation = "silu";
  return config;
}

ModelConfig SmolLm2Config(uint32_t layers) {
  ModelConfig config = SmallLlamaConfig();
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.vocab_size = 49152;
  config.context_length = 8192;
  config.layers = layers;
  config.heads = 9;
  config.kv_heads = 3;
  config.head_dim = 64;
  config.rope.rotary_dim = 64;
  config.rope.theta = 100000;
  config.rope.pairing = RopeConfig::Pairing::kInterleaved;
  config.tied_embeddings = true;
  return config;
}

TensorIndex MadeLlamaIndex(const ModelConfig& c, const std::string& format) {
  IndexMaker make(format);
  const uint64_t q = uint64_t{c.heads} * c.head_dim, kv = uint64_t{c.kv_heads} * c.head_dim;
  make.Matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size);
  for (uint32_t i = 0; i < c.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    make.Vector(layer + "input_layernorm.weight", c.hidden_size);
    make.Matrix(layer + "self_attn.q_proj.weight", q, c.hidden_size);
    make.Matrix(layer + "self_attn.k_proj.weight", kv, c.hidden_size);
    make.Matrix(layer + "self_attn.v_proj.weight", kv, c.hidden_size);
    make.Matrix(layer + "self_attn.o_proj.weight", c.hidden_size, q);
    make.Vector(layer + "post_attention_layernorm.weight", c.hidden_size);
    make.Matrix(layer + "mlp.gate_proj.weight", c.intermediate_size, c.hidden_size);
    make.Matrix(layer + "mlp.up_proj.weight", c.intermediate_size, c.hidden_size);
    make.Matrix(layer + "mlp.down_proj.weight", c.hidden_size, c.intermediate_size);
    if (c.attention_bias) {
      make.Vector(layer + "self_attn.q_proj.bias", q);
      make.Vector(layer + "self_attn.k_proj.bias", kv);
      make.Vector(layer + "self_attn.v_proj.bias", kv);
    }
    if (c.attention_output_bias) make.Vector(layer + "self_attn.o_proj.bias", c.hidden_size);
  }
  make.Vector("model.norm.weight", c.hidden_size);
  if (!c.tied_embeddings) make.Matrix("lm_head.weight", c.vocab_size, c.hidden_size);
  TensorIndex index = make.Take();
  index.set_model_digest(IndexDigest(c, index));
  return index;
}

}  // namespace bitshard
