// A whole small compressed-tensors llama with random weights, in shapes and forms that no fixture
// has.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "kernels/base/float_types.h"
#include "tests/coordinator/checkpoint/safetensors_writer.h"
#include "tests/coordinator/checkpoint/temp_files.h"
#include "tests/kernels/formats/random_ct.h"

namespace bitshard {

struct MadeCtShape {
  std::string format = "ct_int5 group=32 scale=bf16 asym dense";  // of all matrices
  uint32_t hidden = 64;
  uint32_t layers = 1;
  uint32_t heads = 4;
  uint32_t kv_heads = 4;
  uint32_t head_dim = 48;  // cuts fall inside of words, groups and words of zero points
  uint32_t intermediate = 192;
  uint32_t vocab = 200;  // three units of 64 and a shorter one
  bool tied = false;
  bool stores_embedding = true;
  bool stores_head = true;
};

inline std::string I64Bytes(uint64_t a, uint64_t b) {
  return LittleEndian<uint64_t>(a) + LittleEndian<uint64_t>(b);
}

// The stored tensors of one weight in `format`, as a writer of compressed-tensors names them.
inline void AddCtWeight(const std::string& format, const std::string& module, uint64_t rows,
                        uint64_t cols, std::mt19937_64& random, StoredTensors& out) {
  const auto parts = RandomCtParts(format, rows, cols, random, 0.3f);
  const WeightFormat* const known = FindFormat(format);
  const auto has = [&format](const char* word) { return format.find(word) != std::string::npos; };
  const std::string scale = has("scale=f32") ? "F32" : has("scale=f16") ? "F16" : "BF16";
  const auto shape = [&](size_t part, uint64_t bytes) {
    const auto stored = known->ShapeOfPart(part, rows, cols);
    return std::vector<uint64_t>{stored->rows, stored->row_bytes / bytes};
  };
  out[module + ".weight_packed"] = {"I32", shape(0, 4), parts[0]};
  out[module + ".weight_scale"] = {scale, shape(1, scale == "F32" ? 4 : 2), parts[1]};
  out[module + ".weight_shape"] = {"I64", {2}, I64Bytes(rows, cols)};
  if (parts.size() == 3) out[module + ".weight_zero_point"] = {"I32", shape(2, 4), parts[2]};
}

// The quantization_config that says `format` of all linear layers and the embedding.
inline std::string CtSettings(const std::string& format) {
  const auto has = [&format](const char* word) { return format.find(word) != std::string::npos; };
  const size_t group = format.find("group=");
  const std::string strategy =
      group == std::string::npos
          ? R"("strategy":"channel","group_size":null)"
          : R"("strategy":"group","group_size":)" +
                format.substr(group + 6, format.find(' ', group) - group - 6);
  return R"({"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":{
      "group_0":{"targets":["Linear","Embedding"],"weights":{"type":"int","num_bits":)" +
         format.substr(6, 1) + R"(,"symmetric":)" + (has("asym") ? "false" : "true") + "," +
         strategy + "}}}}";
}

inline std::string WriteMadeCtLlama(const std::string& folder, const MadeCtShape& s) {
  std::mt19937_64 random(20241130);
  StoredTensors tensors;
  const auto matrix = [&](const std::string& module, uint64_t rows, uint64_t cols) {
    AddCtWeight(s.format, module, rows, cols, random, tensors);
  };
  const auto norm = [&](const std::string& module) {
    std::string ones;
    for (uint32_t i = 0; i < s.hidden; ++i) ones += LittleEndian<uint16_t>(0x3f80);
    tensors[module + ".weight"] = {"BF16", {s.hidden}, ones};
  };
  if (s.stores_embedding) matrix("model.embed_tokens", s.vocab, s.hidden);
  if (s.stores_head) matrix("lm_head", s.vocab, s.hidden);
  for (uint32_t i = 0; i < s.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    norm(layer + "input_layernorm");
    norm(layer + "post_attention_layernorm");
    matrix(layer + "self_attn.q_proj", uint64_t{s.heads} * s.head_dim, s.hidden);
    matrix(layer + "self_attn.k_proj", uint64_t{s.kv_heads} * s.head_dim, s.hidden);
    matrix(layer + "self_attn.v_proj", uint64_t{s.kv_heads} * s.head_dim, s.hidden);
    matrix(layer + "self_attn.o_proj", s.hidden, uint64_t{s.heads} * s.head_dim);
    matrix(layer + "mlp.gate_proj", s.intermediate, s.hidden);
    matrix(layer + "mlp.up_proj", s.intermediate, s.hidden);
    matrix(layer + "mlp.down_proj", s.hidden, s.intermediate);
  }
  norm("model.norm");
  const auto number = [](const char* key, uint64_t value) {
    return std::string("\"") + key + "\":" + std::to_string(value) + ",";
  };
  const std::string config =
      R"({"architectures":["LlamaForCausalLM"],"rms_norm_eps":1e-5,)" +
      number("hidden_size", s.hidden) + number("num_hidden_layers", s.layers) +
      number("num_attention_heads", s.heads) + number("num_key_value_heads", s.kv_heads) +
      number("head_dim", s.head_dim) + number("intermediate_size", s.intermediate) +
      number("vocab_size", s.vocab) + number("max_position_embeddings", 512) +
      "\"tie_word_embeddings\":" + (s.tied ? "true" : "false") +
      ",\"quantization_config\":" + CtSettings(s.format) + "}";
  WriteFile(folder + "/config.json", config);
  WriteFile(folder + "/model.safetensors", SafetensorsFile(tensors));
  return folder;
}

}  // namespace bitshard
