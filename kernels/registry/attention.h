// Causal attention over the paged cache (kernels/tensor/kv_layout.h).
//
// Bits. score = (fma chain over d ascending of q[d] k[d]) * scale. Chunks of 256 positions at
// absolute multiples, each alone over its visible positions: m = max, p = ExpF32(score - m), l = 16
// lanes (position mod 16, ascending) then the tree (l+8, l+4, l+2, l+1), o[d] = fma chain over
// positions ascending of p v[d]. Chunks fold left to right: m' = max(m, mc), a = ExpF32(m - m'), b
// = ExpF32(mc - m'), l = fma(l, a, lc * b), o = fma(o, a, oc * b); at the end o / l. Nothing
// depends on batch, chunk of prefill, threads, ISA or the other heads. The first chunk starts the
// fold as it is.
//
// int8 and fp8_e4m3: k[d] and v[d] are the values of the codes (kernels/registry/
// attention_codes.h), without their scales: score = ((chain) * K scale) * scale, and o[d] sums
// (p * V scale) v[d], the product rounded once; l sums p itself. A token with a non-finite k or v
// has the scale NaN: all who see it get NaN.
//
// Rotation (kernels/registry/rope.h), where asked for, is that of RopeTable::Apply, bit by bit.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "kernels/registry/kernel_choice.h"
#include "kernels/registry/rope.h"
#include "kernels/tensor/buffer.h"
#include "kernels/tensor/kv_layout.h"

namespace bitshard {

struct AttentionKernel;  // kernels/registry/attention_kernel.h
struct AttentionTask;

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

// Angles of the step's tokens, as RopeTable::CosSin gives them.
struct AttentionRotation {
  const float* cos = nullptr;  // [tokens][rotary_dim / 2], row strides in elements
  const float* sin = nullptr;
  int64_t stride = 0;
  int rotary_dim = 0;  // even, <= head_dim; the rest of a head passes through
  RopeConfig::Pairing pairing = RopeConfig::Pairing::kHalves;
};

// q, out: [tokens, q_heads * head_dim]; k, v: [tokens, kv_heads * head_dim]; row strides in
// elements.
struct AttentionValues {
  const float* q = nullptr;
  int64_t q_stride = 0;
  const float* k = nullptr;
  const float* v = nullptr;
  int64_t kv_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

class BoundAttention {
 public:
  // Also makes the scratch for `threads` threads.
  static absl::StatusOr<BoundAttention> Bind(const AttentionConfig& config, int threads, Isa isa);

  const std::string& kernel() const { return kernel_name_; }
  std::string reason() const { return RefusalText(refused_); }
  KernelChoice choice() const;

  // Rounds k and v [tokens, kv_heads * head_dim] to the cache type and stores them. Row r at k + r
  // * stride. `layer` is the layer's memory.
  void Append(absl::Span<const AttentionRow> rows, const float* k, const float* v, int64_t stride,
              uint8_t* layer, ThreadPool& pool) const;

  // q, out: [tokens, q_heads * head_dim], row strides in elements. Reads the cache as stored, so
  // Append comes first.
  void Run(absl::Span<const AttentionRow> rows, const float* q, int64_t q_stride,
           const uint8_t* layer, float* out, int64_t out_stride, ThreadPool& pool);

  // The same bits as RopeTable::Apply on q and k (when there is a rotation), Append and Run, with
  // fewer synchronizations: one parallel region when every row has one token, else two. q and k
  // stay as they are.
  // REQUIRES: no row sees positions that another row of this call appends.
  void AppendAndRun(absl::Span<const AttentionRow> rows, const AttentionValues& values,
                    const AttentionRotation* rotation, uint8_t* layer, ThreadPool& pool);

 private:
  struct Call;     // what one call works on
  struct RowPlan;  // how one row is cut into tasks

  void AppendToken(const Call& call, const AttentionRow& row, int64_t token, int kv_head,
                   float* rotated) const;
  // Those rows that their tasks do not append; `scratch` is for rotated keys.
  void AppendRows(const Call& call, absl::Span<const AttentionRow> rows, float* scratch,
                  ThreadPool& pool) const;
  // At most kRowsAtOnce rows.
  void RunRows(const Call& call, absl::Span<const AttentionRow> rows, ThreadPool& pool);
  int64_t PlanRows(absl::Span<const AttentionRow> rows, int threads);
  void RunTask(const Call& call, absl::Span<const AttentionRow> rows, int64_t task, int thread);
  int64_t QueriesAtOnce(const AttentionRow& row) const;

  AttentionConfig config_;
  const AttentionKernel* impl_ = nullptr;
  std::vector<std::vector<int>> q_heads_of_kv_;
  int64_t largest_group_ = 0;  // query heads of one kv head
  Buffer scratch_;             // [threads][scratch_stride_]
  int64_t scratch_stride_ = 0;
  int threads_ = 0;
  Buffer plan_;  // RowPlan[kRowsAtOnce]
  // Of work that is split by chunks: what each chunk gave, and how many parts have ended.
  Buffer partials_;
  std::unique_ptr<std::atomic<int>[]> arrived_;
  std::string kernel_name_;
  std::vector<RefusedKernel> refused_;
};

}  // namespace bitshard
