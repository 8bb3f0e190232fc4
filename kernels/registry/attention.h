// Causal attention over the paged cache (kernels/tensor/kv_layout.h).
//
// Bits. score = (fma chain over d ascending of q[d] k[d]) * scale. Chunks of 256 positions at
// absolute multiples, each alone over its visible positions: m = max, p = ExpF32(score - m), l = 16
// lanes (position mod 16, ascending) then the tree (l+8, l+4, l+2, l+1), o[d] = fma chain over
// positions ascending of p v[d]. Chunks fold left to right: m' = max(m, mc), a = ExpF32(m - m'), b
// = ExpF32(mc - m'), l = fma(l, a, lc * b), o = fma(o, a, oc * b); at the end o / l. Nothing
// depends on batch, chunk of prefill, threads, ISA or the other heads. The first chunk starts the
// fold as it is.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "kernels/tensor/buffer.h"
#include "kernels/tensor/kv_layout.h"

namespace bitshard {

struct AttentionKernel;  // kernels/registry/attention_kernel.h

// One sequence's tokens of this step.
struct AttentionRow {
  const uint32_t* blocks = nullptr;  // block table, entries for all positions below start + tokens
  int64_t start = 0;                 // position of the first token
  int64_t tokens = 0;
  int64_t first_row = 0;  // its row in q, k, v and out; the others follow
};

struct AttentionConfig {
  KvLayout layout = {};
  int q_heads = 0;                     // this rank's, may be 0
  std::vector<int> kv_head_of_q = {};  // [q_heads], each below layout.kv_heads
  float scale = 1;
  int window = 0;  // keys visible to a query, itself included; 0 = all
};

class BoundAttention {
 public:
  // Also makes the scratch for `threads` threads.
  static absl::StatusOr<BoundAttention> Bind(const AttentionConfig& config, int threads, Isa isa);

  const std::string& kernel() const { return kernel_name_; }
  const std::string& reason() const { return reason_; }

  // Rounds k and v [tokens, kv_heads * head_dim] to the cache type and stores them. Row r at k + r
  // * stride. `layer` is the layer's memory.
  void Append(absl::Span<const AttentionRow> rows, const float* k, const float* v, int64_t stride,
              uint8_t* layer, ThreadPool& pool) const;

  // q, out: [tokens, q_heads * head_dim], row strides in elements. Reads the cache as stored, so
  // Append comes first.
  void Run(absl::Span<const AttentionRow> rows, const float* q, int64_t q_stride,
           const uint8_t* layer, float* out, int64_t out_stride, ThreadPool& pool);

 private:
  AttentionConfig config_;
  const AttentionKernel* impl_ = nullptr;
  std::vector<std::vector<int>> q_heads_of_kv_;
  Buffer scratch_;  // [threads][scratch_stride_]
  int64_t scratch_stride_ = 0;
  int threads_ = 0;
  std::string kernel_name_;
  std::string reason_;
};

}  // namespace bitshard
