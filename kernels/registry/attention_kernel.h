// What an attention kernel gets and how it registers.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/registry/attention.h"
#include "kernels/registry/kernel_registry.h"

namespace bitshard {

// Queries that read the same K and V: some tokens x the query heads of one kv head. So many that a
// prefill reads K and V seldom, so few that there are tasks enough for all threads.
inline constexpr int kMaxTaskQueries = 24;
inline constexpr int kGroupQueries = 6;  // of a task: that share each vector of K and V

// One query over one chunk: max, sum, and from [kAttentionPartialOut] on the output, not yet
// divided; rounded up to whole vectors.
inline constexpr int kAttentionPartialOut = 16;
inline constexpr int64_t AttentionPartialFloats(int head_dim) {
  return kAttentionPartialOut + (int64_t{head_dim} + 15) / 16 * 16;
}

struct AttentionTask {
  KvType type;
  int head_dim;
  const uint8_t* k;  // of this kv head in block 0; block b is at + b * block_bytes
  const uint8_t* v;
  int64_t block_bytes;
  const uint32_t* blocks;
  float scale;
  int queries;  // 1..kMaxTaskQueries
  const float* q[kMaxTaskQueries];
  float* out[kMaxTaskQueries];
  int64_t first[kMaxTaskQueries];  // visible positions [first, last]
  int64_t last[kMaxTaskQueries];
  // Chunks to work on, [first, last]. With `partials` each chunk's results go there, [chunk -
  // partials_chunk][queries][AttentionPartialFloats] (a query that sees nothing of a chunk leaves
  // its place as it is), and `fold` makes the outputs; without, the task folds all that its queries
  // see and writes the outputs.
  int64_t first_chunk;
  int64_t last_chunk;
  float* partials;
  int64_t partials_chunk;
  float* scratch;  // AttentionScratchFloats(head_dim), 64-byte aligned
};

// p of one group [kGroupQueries][256], and of all queries: q once more [queries][head_dim, in whole
// vectors], o of the chunk and o so far [queries][partial floats].
inline constexpr int64_t AttentionScratchFloats(int head_dim) {
  return kGroupQueries * kKvChunkTokens +
         kMaxTaskQueries * (3 * AttentionPartialFloats(head_dim) - kAttentionPartialOut);
}

// One token of one kv head into its block.
struct AttentionAppendTask {
  KvType type;
  int head_dim;
  int slot;        // position % 16
  const float* k;  // [head_dim]
  const float* v;
  uint8_t* k_plane;
  uint8_t* v_plane;
};

// x [head_dim], rotated, to out; they do not overlap.
struct AttentionRotateTask {
  int head_dim;
  int rotary_dim;
  bool interleaved;
  const float* cos;  // [rotary_dim / 2]
  const float* sin;
  const float* x;
  float* out;
};

struct AttentionKernel {
  const char* name = nullptr;
  Isa isa = Isa::kScalar;
  int cost = 0;
  // Empty, or why it cannot serve this.
  std::string (*refuses)(const AttentionConfig& config) = nullptr;
  void (*run)(const AttentionTask& task) = nullptr;
  void (*fold)(const AttentionTask& task) = nullptr;  // reads task.partials
  void (*append)(const AttentionAppendTask& task) = nullptr;
  void (*rotate)(const AttentionRotateTask& task) = nullptr;
};

}  // namespace bitshard
