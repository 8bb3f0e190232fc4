#include "worker/step/cpu_executor.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "worker/cache/kv_cache.h"
#include "worker/step/bound_graph.h"

namespace bitshard {
namespace {

// How much of the cache has the host's memory though no plan has used it yet.
constexpr uint64_t kAheadBytes = uint64_t{128} << 20;
constexpr uint32_t kLeastAheadBlocks = 16, kMostAheadBlocks = 256;

void PrefetchOp(const Op& op) {
  constexpr int kLines = 12, kLineBytes = 64;  // most ops are smaller
  const char* const begin = reinterpret_cast<const char*>(&op);
  for (int i = 0; i < kLines; ++i) __builtin_prefetch(begin + i * kLineBytes);
}

class CpuExecutor final : public GraphExecutor {
 public:
  CpuExecutor(std::unique_ptr<BoundGraph> graph, ThreadPool* pool, StepProfile* profile)
      : graph_(std::move(graph)), pool_(pool), profile_(profile) {
    if (profile_ != nullptr) {
      profile_->kinds = graph_->OpKinds();
      profile_->op_ns.assign(graph_->ops().size(), 0);
    }
    layers_.resize(graph_->context().cache_layers().size());
  }

  absl::Status StartEpoch(Collective&, uint32_t blocks) override {
    ASSIGN_OR_RETURN(cache_, KvCache::Create(graph_->context().cache_layers(), blocks));
    for (size_t i = 0; i < layers_.size(); ++i) layers_[i] = cache_.layer(i);
    ahead_blocks_ = static_cast<uint32_t>(
        std::clamp<uint64_t>(kAheadBytes / std::max<uint64_t>(1, CacheBytesPerBlock()),
                             kLeastAheadBlocks, kMostAheadBlocks));
    return absl::OkStatus();
  }

  absl::Status EndEpoch(std::unique_ptr<Collective> collective) override {
    collective.reset();
    cache_ = KvCache();
    return absl::OkStatus();
  }

  absl::Status Launch(StepState& step, StepProgress& progress) override {
    using Clock = std::chrono::steady_clock;
    step.cache_layers = layers_.data();
    step.pool = pool_;
    const std::vector<std::unique_ptr<Op>>& ops = graph_->ops();
    Clock::time_point begin = profile_ == nullptr ? Clock::time_point() : Clock::now();
    for (size_t i = 0; i < ops.size(); ++i) {
      // The object of one, then what it points to: weights have driven all of it from the caches.
      if (i + 2 < ops.size()) PrefetchOp(*ops[i + 2]);
      if (i + 1 < ops.size()) ops[i + 1]->Prefetch();
      progress.op.store(static_cast<uint64_t>(graph_->first_node(i)), std::memory_order_relaxed);
      RETURN_IF_ERROR(ops[i]->Run(step));
      if (profile_ == nullptr) continue;
      const Clock::time_point end = Clock::now();
      profile_->op_ns[i] += std::chrono::nanoseconds(end - begin).count();
      begin = end;
    }
    return absl::OkStatus();
  }

  absl::Status Collect(StepState&, absl::FunctionRef<void()>) override { return absl::OkStatus(); }

  const float* final_hidden() const override { return graph_->context().final_hidden(); }

  bool TakeCacheAhead(uint32_t used_blocks) override {
    return cache_.Touch(used_blocks, used_blocks + std::min(ahead_blocks_, cache_.blocks()));
  }

  std::vector<internal::KernelChoice> Kernels() const override { return graph_->Kernels(); }
  uint64_t CacheBytesPerBlock() const override {
    return KvCache::BytesPerBlock(graph_->context().cache_layers());
  }
  uint64_t WorkspaceBytes() const override { return graph_->context().workspace_bytes(); }
  bool on_host() const override { return true; }

 private:
  const std::unique_ptr<BoundGraph> graph_;
  ThreadPool* const pool_;
  StepProfile* const profile_;  // null: nobody asked

  // Of the running epoch.
  KvCache cache_;
  uint32_t ahead_blocks_ = 0;  // that have the host's memory beyond those used
  std::vector<uint8_t*> layers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GraphExecutor>> MakeCpuExecutor(
    const internal::ModelGraph& graph, std::shared_ptr<const LoadedWeights> weights,
    const BindContext::Options& options, StepProfile* profile) {
  ASSIGN_OR_RETURN(std::unique_ptr<BoundGraph> bound,
                   BoundGraph::Bind(graph, std::move(weights), options));
  return std::make_unique<CpuExecutor>(std::move(bound), options.pool, profile);
}

}  // namespace bitshard
