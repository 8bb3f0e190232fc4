#include "kernels/registry/attention.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/float_types.h"
#include "kernels/registry/attention_kernel.h"

namespace bitshard {
namespace {

// Writes one token's K (a column of the block) and V (a row) of one kv head.
template <typename Store>
void AppendHead(const float* k, const float* v, int head_dim, int slot, uint8_t* k_plane,
                uint8_t* v_plane, Store store) {
  for (int d = 0; d < head_dim; ++d) {
    store(k_plane, int64_t{d} * kKvBlockTokens + slot, k[d]);
    store(v_plane, int64_t{slot} * head_dim + d, v[d]);
  }
}

}  // namespace

absl::StatusOr<BoundAttention> BoundAttention::Bind(const AttentionConfig& config, int threads,
                                                    Isa isa) {
  const KvLayout& layout = config.layout;
  if (config.q_heads < 0 || config.kv_head_of_q.size() != static_cast<size_t>(config.q_heads) ||
      layout.kv_heads < 0 || layout.head_dim <= 0 || layout.head_dim > 4096 || config.window < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention: ", config.q_heads, " query heads with ",
                     config.kv_head_of_q.size(), " kv heads named, ", layout.kv_heads,
                     " kv heads of ", layout.head_dim, ", window ", config.window));
  }
  BoundAttention bound;
  bound.config_ = config;
  bound.q_heads_of_kv_.resize(layout.kv_heads);
  for (int h = 0; h < config.q_heads; ++h) {
    const int kv = config.kv_head_of_q[h];
    if (kv < 0 || kv >= layout.kv_heads) {
      return absl::InvalidArgumentError(absl::StrCat("attention: query head ", h, " names kv head ",
                                                     kv, " of ", layout.kv_heads));
    }
    bound.q_heads_of_kv_[kv].push_back(h);
  }
  for (const AttentionKernel* kernel : KernelRegistry<AttentionKernel>::Get().all()) {
    if (!HasIsa(kernel->isa)) continue;
    const std::string refusal =
        kernel->isa > isa ? absl::StrCat("this rank is held to ", std::string(IsaName(isa)))
                          : kernel->refuses(config);
    if (refusal.empty()) {
      bound.impl_ = kernel;
      bound.kernel_name_ = kernel->name;
      break;
    }
    absl::StrAppend(&bound.reason_, bound.reason_.empty() ? "" : "; ", kernel->name, ": ", refusal);
  }
  if (bound.impl_ == nullptr)
    return absl::UnimplementedError(absl::StrCat("attention: ", bound.reason_));
  bound.threads_ = threads;
  bound.scratch_stride_ = AttentionScratchFloats(layout.head_dim);
  bound.scratch_ = Buffer(threads * bound.scratch_stride_ * sizeof(float));
  return bound;
}

void BoundAttention::Append(absl::Span<const AttentionRow> rows, const float* k, const float* v,
                            int64_t stride, uint8_t* layer, ThreadPool& pool) const {
  const KvLayout& layout = config_.layout;
  const int64_t heads = layout.kv_heads;
  if (heads == 0) return;
  for (const AttentionRow& row : rows) {
    pool.ParallelFor(row.tokens, [&](int64_t token, int) {
      const int64_t position = row.start + token;
      const int slot = static_cast<int>(position % kKvBlockTokens);
      uint8_t* block = layer + row.blocks[position / kKvBlockTokens] * layout.block_bytes();
      for (int h = 0; h < heads; ++h) {
        const int64_t offset = (row.first_row + token) * stride + int64_t{h} * layout.head_dim;
        uint8_t* k_plane = block + layout.k_offset(h);
        uint8_t* v_plane = block + layout.v_offset(h);
        const auto put16 = [](uint8_t* plane, int64_t i, uint16_t bits) {
          std::memcpy(plane + 2 * i, &bits, 2);
        };
        switch (layout.type) {
          case KvType::kBf16:
            AppendHead(
                k + offset, v + offset, layout.head_dim, slot, k_plane, v_plane,
                [&](uint8_t* plane, int64_t i, float value) { put16(plane, i, F32ToBf16(value)); });
            break;
          case KvType::kF16:
            AppendHead(
                k + offset, v + offset, layout.head_dim, slot, k_plane, v_plane,
                [&](uint8_t* plane, int64_t i, float value) { put16(plane, i, F32ToF16(value)); });
            break;
          case KvType::kF32:
            AppendHead(k + offset, v + offset, layout.head_dim, slot, k_plane, v_plane,
                       [](uint8_t* plane, int64_t i, float value) {
                         std::memcpy(plane + 4 * i, &value, 4);
                       });
            break;
        }
      }
    });
  }
}

void BoundAttention::Run(absl::Span<const AttentionRow> rows, const float* q, int64_t q_stride,
                         const uint8_t* layer, float* out, int64_t out_stride, ThreadPool& pool) {
  CHECK_LE(pool.threads(), threads_);
  const KvLayout& layout = config_.layout;
  const int head_dim = layout.head_dim;
  if (config_.q_heads == 0) return;
  // Tasks of one row: kv heads x runs of queries, where query i is (token i / group, head i %
  // group). Heads of a smaller group have fewer runs; their surplus tasks are empty.
  size_t largest_group = 0;
  for (const auto& heads : q_heads_of_kv_) largest_group = std::max(largest_group, heads.size());
  const auto runs_of = [&](const AttentionRow& row) {
    return (row.tokens * static_cast<int64_t>(largest_group) + kMaxTaskQueries - 1) /
           kMaxTaskQueries;
  };
  int64_t chunks = 0;
  for (const AttentionRow& row : rows) chunks += layout.kv_heads * runs_of(row);
  pool.ParallelFor(chunks, [&](int64_t chunk, int thread) {
    size_t r = 0;
    while (chunk >= layout.kv_heads * runs_of(rows[r]))
      chunk -= layout.kv_heads * runs_of(rows[r++]);
    const AttentionRow& row = rows[r];
    const int kv_head = static_cast<int>(chunk % layout.kv_heads);
    // The last tokens have the longest work: they go first.
    const int64_t run = runs_of(row) - 1 - chunk / layout.kv_heads;
    const std::vector<int>& heads = q_heads_of_kv_[kv_head];
    const int64_t group = static_cast<int64_t>(heads.size());
    const int64_t begin = run * kMaxTaskQueries;
    const int64_t end = std::min(begin + kMaxTaskQueries, row.tokens * group);
    if (begin >= end) return;
    AttentionTask task;
    task.type = layout.type;
    task.head_dim = head_dim;
    task.k = layer + layout.k_offset(kv_head);
    task.v = layer + layout.v_offset(kv_head);
    task.block_bytes = layout.block_bytes();
    task.blocks = row.blocks;
    task.scale = config_.scale;
    task.scratch = scratch_.as<float>() + thread * scratch_stride_;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = i / group;
      const int64_t head = heads[i % group];
      const int64_t position = row.start + token;
      const int n = task.queries++;
      task.q[n] = q + (row.first_row + token) * q_stride + head * head_dim;
      task.out[n] = out + (row.first_row + token) * out_stride + head * head_dim;
      task.first[n] = config_.window == 0 ? 0 : std::max<int64_t>(0, position - config_.window + 1);
      task.last[n] = position;
    }
    impl_->run(task);
  });
}

}  // namespace bitshard
