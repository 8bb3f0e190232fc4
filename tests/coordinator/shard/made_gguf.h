// A whole small GGUF llama with weights of fixed random bytes, in shapes that no fixture has.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/coordinator/checkpoint/gguf_writer.h"

namespace bitshard {

struct MadeGgufShape {
  uint32_t hidden = 64;
  uint32_t layers = 1;
  uint32_t heads = 4;
  uint32_t kv_heads = 2;
  uint32_t head_dim = 32;
  uint32_t intermediate = 192;
  uint32_t vocab = 200;  // three units of 64 and a shorter one
  uint32_t type = 8;     // 3 q4_1, 8 q8_0
};

// Random blocks whose f16 scales (and minima) are finite.
inline std::string RandomBlocks(uint32_t type, uint64_t elements, std::mt19937& random) {
  const uint64_t block_bytes = type == 3 ? 20 : 34;
  std::string bytes(elements / 32 * block_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  for (uint64_t i = 0; i < bytes.size(); i += block_bytes) {
    bytes[i + 1] = static_cast<char>(bytes[i + 1] & 0xbf);
    if (type == 3) bytes[i + 3] = static_cast<char>(bytes[i + 3] & 0xbf);
  }
  return bytes;
}

inline std::string MadeLlamaGguf(const MadeGgufShape& s) {
  std::mt19937 random(20241129);
  GgufWriter writer;
  writer.String("general.architecture", "llama").String("general.name", "made llama");
  writer.U32("llama.block_count", s.layers).U32("llama.context_length", 512);
  writer.U32("llama.embedding_length", s.hidden).U32("llama.feed_forward_length", s.intermediate);
  writer.U32("llama.attention.head_count", s.heads)
      .U32("llama.attention.head_count_kv", s.kv_heads);
  writer.U32("llama.attention.key_length", s.head_dim)
      .U32("llama.attention.value_length", s.head_dim);
  writer.U32("llama.rope.dimension_count", s.head_dim).U32("llama.vocab_size", s.vocab);
  writer.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const auto matrix = [&](const std::string& name, uint64_t rows, uint64_t cols) {
    writer.Tensor(name, {cols, rows}, s.type, RandomBlocks(s.type, rows * cols, random));
  };
  const auto norm = [&](const std::string& name) {
    std::string ones;
    for (uint32_t i = 0; i < s.hidden; ++i) ones += LittleEndian(1.0f);
    writer.Tensor(name, {s.hidden}, 0, ones);
  };
  matrix("token_embd.weight", s.vocab, s.hidden);
  for (uint32_t i = 0; i < s.layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    norm(block + "attn_norm.weight");
    matrix(block + "attn_q.weight", s.heads * s.head_dim, s.hidden);
    matrix(block + "attn_k.weight", s.kv_heads * s.head_dim, s.hidden);
    matrix(block + "attn_v.weight", s.kv_heads * s.head_dim, s.hidden);
    matrix(block + "attn_output.weight", s.hidden, s.heads * s.head_dim);
    norm(block + "ffn_norm.weight");
    matrix(block + "ffn_gate.weight", s.intermediate, s.hidden);
    matrix(block + "ffn_up.weight", s.intermediate, s.hidden);
    matrix(block + "ffn_down.weight", s.hidden, s.intermediate);
  }
  norm("output_norm.weight");
  matrix("output.weight", s.vocab, s.hidden);
  return writer.Build();
}

}  // namespace bitshard
