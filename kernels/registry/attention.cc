#include "kernels/registry/attention.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/registry/attention_kernel.h"

namespace bitshard {
namespace {

// Steps with more rows run in several regions.
constexpr size_t kRowsAtOnce = 256;
// Tasks that a region should have for each thread, so that all end at about the same time.
constexpr int64_t kTasksPerThread = 3;
// For work that is split: at most so much memory and so many (row, kv head, run of queries).
constexpr int64_t kPartialBytesPerThread = 256 << 10;
constexpr int kSplitsPerThread = 16;

int64_t RoundUpFloats(int64_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

struct BoundAttention::Call {
  const AttentionValues& values;
  const AttentionRotation* rotation;
  uint8_t* layer;
  bool appends;  // tasks append the only token of their row themselves

  bool InTask(const AttentionRow& row) const { return appends && row.tokens == 1; }
};

// The tasks of a row: runs of queries x kv heads x parts of the chunks that they see. Query i of a
// kv head is (token i / group, head i % group); heads of a smaller group have fewer runs, and
// earlier runs may see fewer chunks than there are parts: such tasks are empty.
struct BoundAttention::RowPlan {
  int64_t first_task;  // of the region
  int64_t runs;
  int64_t parts;
  int64_t chunks;    // that the row sees
  int64_t partials;  // where in partials_, when parts > 1; in floats
  int64_t arrived;   // where in arrived_
};

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
  for (const auto& heads : bound.q_heads_of_kv_)
    bound.largest_group_ = std::max(bound.largest_group_, static_cast<int64_t>(heads.size()));
  for (const AttentionKernel* kernel : KernelRegistry<AttentionKernel>::Get().all()) {
    if (!HasIsa(kernel->isa)) continue;
    const std::string refusal =
        kernel->isa > isa
            ? absl::StrCat("this rank is held to ", std::string(IsaName(isa)), " by --isa")
            : kernel->refuses(config);
    if (refusal.empty()) {
      bound.impl_ = kernel;
      bound.kernel_name_ = kernel->name;
      break;
    }
    bound.refused_.push_back({kernel->name, refusal});
  }
  if (bound.impl_ == nullptr)
    return absl::UnimplementedError(absl::StrCat("attention: ", bound.reason()));
  bound.threads_ = threads;
  // The kernel's own, rotated queries, one rotated key.
  bound.scratch_stride_ =
      RoundUpFloats(AttentionScratchFloats(layout.head_dim)) +
      RoundUpFloats(int64_t{kMaxTaskQueries + 1} * RoundUpFloats(layout.head_dim));
  bound.scratch_ = Buffer(threads * bound.scratch_stride_ * sizeof(float), MemoryPart::kWorkspace);
  bound.plan_ = Buffer(kRowsAtOnce * sizeof(RowPlan), MemoryPart::kWorkspace);
  if (threads > 1) {
    bound.partials_ = Buffer(threads * kPartialBytesPerThread, MemoryPart::kWorkspace);
    bound.arrived_ = std::make_unique<std::atomic<int>[]>(threads * kSplitsPerThread);
  }
  return bound;
}

KernelChoice BoundAttention::choice() const {
  KernelChoice choice;
  choice.format = absl::StrCat("kv ", KvTypeName(config_.layout.type));
  choice.kernel = kernel_name_;
  choice.isa = impl_->isa;
  choice.refused = refused_;
  return choice;
}

void BoundAttention::AppendToken(const Call& call, const AttentionRow& row, int64_t token,
                                 int kv_head, float* rotated) const {
  const KvLayout& layout = config_.layout;
  const int64_t position = row.start + token;
  uint8_t* block = call.layer + row.blocks[position / kKvBlockTokens] * layout.block_bytes();
  const int64_t offset =
      (row.first_row + token) * call.values.kv_stride + int64_t{kv_head} * layout.head_dim;
  AttentionAppendTask task;
  task.type = layout.type;
  task.head_dim = layout.head_dim;
  task.slot = static_cast<int>(position % kKvBlockTokens);
  task.k = call.values.k + offset;
  task.v = call.values.v + offset;
  task.k_plane = block + layout.k_offset(kv_head);
  task.v_plane = block + layout.v_offset(kv_head);
  if (call.rotation != nullptr) {
    const AttentionRotation& rotation = *call.rotation;
    const int64_t angles = (row.first_row + token) * rotation.stride;
    impl_->rotate({.head_dim = layout.head_dim,
                   .rotary_dim = rotation.rotary_dim,
                   .interleaved = rotation.pairing == RopeConfig::Pairing::kInterleaved,
                   .cos = rotation.cos + angles,
                   .sin = rotation.sin + angles,
                   .x = task.k,
                   .out = rotated});
    task.k = rotated;
  }
  impl_->append(task);
}

void BoundAttention::AppendRows(const Call& call, absl::Span<const AttentionRow> rows,
                                float* scratch, ThreadPool& pool) const {
  constexpr int64_t kTokensAtOnce = 8;
  int64_t tokens = 0;
  for (const AttentionRow& row : rows) tokens += call.InTask(row) ? 0 : row.tokens;
  pool.ParallelFor((tokens + kTokensAtOnce - 1) / kTokensAtOnce, [&](int64_t task, int thread) {
    float* const rotated = scratch == nullptr ? nullptr : scratch + thread * scratch_stride_;
    int64_t skip = task * kTokensAtOnce, left = kTokensAtOnce;
    for (const AttentionRow& row : rows) {
      if (call.InTask(row)) continue;
      for (int64_t token = skip; token < row.tokens && left > 0; ++token, --left) {
        for (int h = 0; h < config_.layout.kv_heads; ++h) AppendToken(call, row, token, h, rotated);
      }
      skip = std::max<int64_t>(0, skip - row.tokens);
      if (left == 0) return;
    }
  });
}

void BoundAttention::Append(absl::Span<const AttentionRow> rows, const float* k, const float* v,
                            int64_t stride, uint8_t* layer, ThreadPool& pool) const {
  const AttentionValues values = {.k = k, .v = v, .kv_stride = stride};
  AppendRows({values, nullptr, layer, false}, rows, nullptr, pool);
}

void BoundAttention::Run(absl::Span<const AttentionRow> rows, const float* q, int64_t q_stride,
                         const uint8_t* layer, float* out, int64_t out_stride, ThreadPool& pool) {
  const AttentionValues values = {
      .q = q, .q_stride = q_stride, .out = out, .out_stride = out_stride};
  // Nothing is appended: the layer stays as it is.
  const Call call = {values, nullptr, const_cast<uint8_t*>(layer), false};
  for (size_t begin = 0; begin < rows.size(); begin += kRowsAtOnce)
    RunRows(call, rows.subspan(begin, kRowsAtOnce), pool);
}

void BoundAttention::AppendAndRun(absl::Span<const AttentionRow> rows,
                                  const AttentionValues& values, const AttentionRotation* rotation,
                                  uint8_t* layer, ThreadPool& pool) {
  CHECK_LE(pool.threads(), threads_);
  // A single token is appended by the task that attends over its chunk, unless several do.
  const Call call = {values, rotation, layer, largest_group_ <= kMaxTaskQueries};
  AppendRows(call, rows, scratch_.as<float>(), pool);
  for (size_t begin = 0; begin < rows.size(); begin += kRowsAtOnce)
    RunRows(call, rows.subspan(begin, kRowsAtOnce), pool);
}

// Queries in the largest task of the row.
int64_t BoundAttention::QueriesAtOnce(const AttentionRow& row) const {
  return std::min<int64_t>(kMaxTaskQueries, row.tokens * largest_group_);
}

// Returns the number of tasks.
int64_t BoundAttention::PlanRows(absl::Span<const AttentionRow> rows, int threads) {
  RowPlan* const plans = plan_.as<RowPlan>();
  const int64_t kv_heads = config_.layout.kv_heads;
  const int64_t partial_floats = AttentionPartialFloats(config_.layout.head_dim);
  // What a chunk costs a task: reading K and V, and the arithmetic of each query.
  const auto chunk_cost = [&](const AttentionRow& row) { return 8 + QueriesAtOnce(row); };
  int64_t total_cost = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const AttentionRow& row = rows[r];
    RowPlan& plan = plans[r];
    const int64_t first =
        config_.window == 0 ? 0 : std::max<int64_t>(0, row.start - config_.window + 1);
    plan.chunks = row.tokens == 0
                      ? 0
                      : (row.start + row.tokens - 1) / kKvChunkTokens - first / kKvChunkTokens + 1;
    plan.runs = (row.tokens * largest_group_ + kMaxTaskQueries - 1) / kMaxTaskQueries;
    if (row.tokens > 0) plan.runs = std::max<int64_t>(plan.runs, 1);  // it may have to append
    total_cost += kv_heads * plan.runs * plan.chunks * chunk_cost(row);
  }
  const int64_t task_cost = std::max<int64_t>(1, total_cost / (threads * kTasksPerThread));
  int64_t tasks = 0, partials = 0, arrived = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    RowPlan& plan = plans[r];
    plan.parts = 1;
    if (threads > 1 && plan.chunks > 1) {
      plan.parts = (plan.chunks * chunk_cost(rows[r]) + task_cost - 1) / task_cost;
      plan.parts = std::clamp<int64_t>(plan.parts, 1, plan.chunks);
    }
    if (plan.parts > 1) {
      const int64_t splits = kv_heads * plan.runs;
      const int64_t floats = splits * plan.chunks * QueriesAtOnce(rows[r]) * partial_floats;
      if ((partials + floats) * static_cast<int64_t>(sizeof(float)) <=
              static_cast<int64_t>(partials_.bytes()) &&
          arrived + splits <= int64_t{threads_} * kSplitsPerThread) {
        plan.partials = partials;
        plan.arrived = arrived;
        partials += floats;
        arrived += splits;
      } else {
        plan.parts = 1;
      }
    }
    plan.first_task = tasks;
    tasks += kv_heads * plan.runs * plan.parts;
  }
  return tasks;
}

void BoundAttention::RunRows(const Call& call, absl::Span<const AttentionRow> rows,
                             ThreadPool& pool) {
  CHECK_LE(pool.threads(), threads_);
  if (config_.layout.kv_heads == 0) return;
  pool.ParallelFor(PlanRows(rows, pool.threads()),
                   [&](int64_t task, int thread) { RunTask(call, rows, task, thread); });
}

void BoundAttention::RunTask(const Call& call, absl::Span<const AttentionRow> rows, int64_t index,
                             int thread) {
  const KvLayout& layout = config_.layout;
  const RowPlan* const plans = plan_.as<RowPlan>();
  const size_t r =
      std::upper_bound(plans, plans + rows.size(), index,
                       [](int64_t i, const RowPlan& plan) { return i < plan.first_task; }) -
      plans - 1;
  const AttentionRow& row = rows[r];
  const RowPlan& plan = plans[r];
  index -= plan.first_task;
  const int64_t part = index % plan.parts;
  const int kv_head = static_cast<int>(index / plan.parts % layout.kv_heads);
  // The last tokens have the longest work: they go first.
  const int64_t run = plan.runs - 1 - index / plan.parts / layout.kv_heads;
  const std::vector<int>& heads = q_heads_of_kv_[kv_head];
  const int64_t group = static_cast<int64_t>(heads.size());
  const int64_t begin = run * kMaxTaskQueries;
  const int64_t end = std::min(begin + kMaxTaskQueries, row.tokens * group);
  float* const scratch = scratch_.as<float>() + thread * scratch_stride_;
  float* rotated = scratch + RoundUpFloats(AttentionScratchFloats(layout.head_dim));
  const bool appends = call.InTask(row);
  if (begin >= end) {
    if (appends && part == 0) AppendToken(call, row, 0, kv_head, rotated);
    return;
  }

  AttentionTask task;
  task.type = layout.type;
  task.head_dim = layout.head_dim;
  task.k = call.layer + layout.k_offset(kv_head);
  task.v = call.layer + layout.v_offset(kv_head);
  task.block_bytes = layout.block_bytes();
  task.blocks = row.blocks;
  task.scale = config_.scale;
  task.queries = static_cast<int>(end - begin);
  task.scratch = scratch;
  for (int n = 0; n < task.queries; ++n) {
    const int64_t token = (begin + n) / group;
    const int64_t head = heads[(begin + n) % group];
    const int64_t position = row.start + token;
    task.q[n] =
        call.values.q + (row.first_row + token) * call.values.q_stride + head * layout.head_dim;
    task.out[n] =
        call.values.out + (row.first_row + token) * call.values.out_stride + head * layout.head_dim;
    task.first[n] = config_.window == 0 ? 0 : std::max<int64_t>(0, position - config_.window + 1);
    task.last[n] = position;
  }
  const int64_t first_chunk = task.first[0] / kKvChunkTokens;
  const int64_t chunks = task.last[task.queries - 1] / kKvChunkTokens + 1 - first_chunk;
  const int64_t parts = std::min(plan.parts, chunks);
  if (part >= parts) return;
  task.first_chunk = first_chunk + chunks * part / parts;
  task.last_chunk = first_chunk + chunks * (part + 1) / parts - 1;
  task.partials = nullptr;
  task.partials_chunk = first_chunk;
  const int64_t split = run * layout.kv_heads + kv_head;
  if (parts > 1) {
    task.partials =
        partials_.as<float>() + plan.partials +
        split * plan.chunks * QueriesAtOnce(row) * AttentionPartialFloats(layout.head_dim);
  }
  if (appends && part == parts - 1) {
    AppendToken(call, row, 0, kv_head, rotated + kMaxTaskQueries * RoundUpFloats(layout.head_dim));
  }
  if (call.rotation != nullptr) {
    const AttentionRotation& rotation = *call.rotation;
    for (int n = 0; n < task.queries; ++n, rotated += RoundUpFloats(layout.head_dim)) {
      const int64_t angles = (row.first_row + (begin + n) / group) * rotation.stride;
      impl_->rotate({.head_dim = layout.head_dim,
                     .rotary_dim = rotation.rotary_dim,
                     .interleaved = rotation.pairing == RopeConfig::Pairing::kInterleaved,
                     .cos = rotation.cos + angles,
                     .sin = rotation.sin + angles,
                     .x = task.q[n],
                     .out = rotated});
      task.q[n] = rotated;
    }
  }
  impl_->run(task);
  if (parts == 1) return;
  // The last to arrive sees the others' results and folds them all.
  std::atomic<int>& arrived = arrived_[plan.arrived + split];
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < parts) return;
  arrived.store(0, std::memory_order_relaxed);
  impl_->fold(task);
}

}  // namespace bitshard
