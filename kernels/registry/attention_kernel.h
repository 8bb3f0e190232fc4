// What an attention kernel gets and how it registers.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/registry/attention.h"
#include "kernels/registry/kernel_registry.h"

namespace bitshard {

// Queries that read the same K and V: some tokens x the query heads of one kv head. Enough to reuse
// each K/V vector, few enough to stay in registers.
inline constexpr int kMaxTaskQueries = 8;

struct AttentionTask {
  KvType type = KvType::kBf16;
  int head_dim = 0;
  const uint8_t* k = nullptr;  // of this kv head in block 0; block b is at + b * block_bytes
  const uint8_t* v = nullptr;
  int64_t block_bytes = 0;
  const uint32_t* blocks = nullptr;
  float scale = 1;
  int queries = 0;  // 1..kMaxTaskQueries
  const float* q[kMaxTaskQueries] = {};
  float* out[kMaxTaskQueries] = {};
  int64_t first[kMaxTaskQueries] = {};  // visible positions [first, last]
  int64_t last[kMaxTaskQueries] = {};
  float* scratch = nullptr;  // AttentionScratchFloats(head_dim), 64-byte aligned
};

// p [queries][256], o of the chunk and o so far [queries][head_dim], rounded up to whole vectors.
inline constexpr int64_t AttentionScratchFloats(int head_dim) {
  return kMaxTaskQueries * (kKvChunkTokens + 2 * ((int64_t{head_dim} + 15) / 16 * 16));
}

struct AttentionKernel {
  const char* name = nullptr;
  Isa isa = Isa::kScalar;
  int cost = 0;
  // Empty, or why it cannot serve this.
  std::string (*refuses)(const AttentionConfig& config) = nullptr;
  void (*run)(const AttentionTask& task) = nullptr;
};

}  // namespace bitshard
