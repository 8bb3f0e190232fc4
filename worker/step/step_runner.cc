#include "worker/step/step_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "worker/cache/kv_cache.h"
#include "worker/load/loader.h"
#include "worker/step/agreement.h"
#include "worker/step/bound_graph.h"
#include "worker/step/slot_table.h"
#include "worker/step/step_batch.h"

namespace bitshard {
namespace {

using internal::NumericsOptions;

// Bounds on what a coordinator may ask for; the buffers follow from them.
constexpr uint32_t kMaxStepTokens = 1 << 16;
constexpr uint32_t kMaxSlots = 1 << 14;
// How much of the cache has the host's memory though no plan has used it yet.
constexpr uint64_t kAheadBytes = uint64_t{128} << 20;
constexpr uint32_t kLeastAheadBlocks = 16, kMostAheadBlocks = 256;

absl::StatusOr<BindContext::Options> BindOptions(const internal::RankPlan& plan,
                                                 const StepRunner::Options& options) {
  const NumericsOptions& numerics = options.numerics;
  BindContext::Options out;
  switch (numerics.activations()) {
    case NumericsOptions::ACTIVATIONS_A16:
      out.activations = ActivationMode::kA16;
      break;
    case NumericsOptions::ACTIVATIONS_F32:
      out.activations = ActivationMode::kF32;
      break;
    case NumericsOptions::ACTIVATIONS_A8:
      out.activations = ActivationMode::kA8;
      break;
    default:
      return absl::UnimplementedError("numerics: activations must be a16, a8 or f32");
  }
  switch (numerics.kv_cache_type()) {
    case NumericsOptions::CACHE_TYPE_BF16:
      out.cache_type = KvType::kBf16;
      break;
    case NumericsOptions::CACHE_TYPE_F32:
      out.cache_type = KvType::kF32;
      break;
    case NumericsOptions::CACHE_TYPE_F16:
      out.cache_type = KvType::kF16;
      break;
    case NumericsOptions::CACHE_TYPE_INT8:
      out.cache_type = KvType::kInt8;
      break;
    case NumericsOptions::CACHE_TYPE_FP8_E4M3:
      out.cache_type = KvType::kFp8E4m3;
      break;
    default:
      return absl::UnimplementedError(
          "numerics: the KV cache type must be bf16, f32, f16, int8 or fp8_e4m3");
  }
  if (numerics.block_tokens() != kKvBlockTokens) {
    return absl::UnimplementedError(
        absl::StrCat("numerics: cache blocks of ", numerics.block_tokens(),
                     " tokens; this worker has blocks of ", kKvBlockTokens));
  }
  if (numerics.max_step_tokens() == 0 || numerics.max_step_tokens() > kMaxStepTokens ||
      numerics.max_slots() == 0 || numerics.max_slots() > kMaxSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("numerics: ", numerics.max_step_tokens(), " tokens a step (1 to ",
                     kMaxStepTokens, "), ", numerics.max_slots(), " slots (1 to ", kMaxSlots, ")"));
  }
  if (plan.world() == 0 || plan.rank() >= plan.world()) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan of rank ", plan.rank(), " of ", plan.world()));
  }
  out.isa = options.isa;
  out.kernel_order = options.kernel_order;
  out.pool = options.pool;
  out.threads = options.pool->threads();
  out.max_step_tokens = numerics.max_step_tokens();
  out.max_outputs = std::min(numerics.max_step_tokens(), numerics.max_slots());
  out.world = plan.world();
  out.logits_tap = options.logits_tap;
  out.fuse = options.fuse;
  return out;
}

// Width of what lm_head reads. The graph has not been checked yet: 0 when there is none.
uint32_t FinalHiddenSize(const internal::ModelGraph& graph) {
  uint64_t width = 0;
  for (const internal::Node& node : graph.nodes()) {
    if (!node.has_lm_head() || node.inputs_size() == 0) continue;
    if (node.inputs(0) >= static_cast<uint32_t>(graph.values_size())) continue;
    width = graph.values(static_cast<int>(node.inputs(0))).width();
  }
  return static_cast<uint32_t>(std::min<uint64_t>(width, INT32_MAX));
}

SlotLimits Limits(const internal::ModelGraph& graph, const NumericsOptions& numerics) {
  SlotLimits limits;
  limits.max_slots = numerics.max_slots();
  limits.max_step_tokens = numerics.max_step_tokens();
  limits.context_tokens = static_cast<uint32_t>(graph.context_length());
  limits.vocab_size = static_cast<uint32_t>(graph.vocab_size());
  limits.block_tokens = numerics.block_tokens();
  limits.hidden_size = FinalHiddenSize(graph);
  return limits;
}

void PrefetchOp(const Op& op) {
  constexpr int kLines = 12, kLineBytes = 64;  // most ops are smaller
  const char* const begin = reinterpret_cast<const char*>(&op);
  for (int i = 0; i < kLines; ++i) __builtin_prefetch(begin + i * kLineBytes);
}

class StepRunnerImpl final : public StepRunner {
 public:
  StepRunnerImpl(const internal::RankPlan& plan, std::unique_ptr<BoundGraph> graph,
                 const Options& options)
      : rank_(plan.rank()),
        world_(plan.world()),
        pool_(options.pool),
        graph_(std::move(graph)),
        slots_(Limits(plan.graph(), options.numerics)),
        batch_(slots_.limits(), /*score_last=*/options.logits_tap != nullptr),
        agreement_(static_cast<int>(plan.world())),
        profile_(options.profile) {
    if (profile_ != nullptr) {
      profile_->kinds = graph_->OpKinds();
      profile_->op_ns.assign(graph_->ops().size(), 0);
    }
    drawn_.reserve(3 * options.numerics.max_slots() + options.numerics.max_step_tokens());
    layers_.resize(graph_->context().cache_layers().size());
  }

  absl::Status StartEpoch(uint64_t term, uint64_t epoch, std::unique_ptr<Collective> collective,
                          uint32_t blocks) override {
    EndEpoch();
    if (static_cast<uint32_t>(collective->rank()) != rank_ ||
        static_cast<uint32_t>(collective->world()) != world_) {
      return absl::InvalidArgumentError(absl::StrCat("communicator of rank ", collective->rank(),
                                                     " of ", collective->world(), ", plan of rank ",
                                                     rank_, " of ", world_));
    }
    if (blocks == 0 || blocks > kMaxCacheBlocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("a cache of ", blocks, " blocks (1 to ", kMaxCacheBlocks, ")"));
    }
    ASSIGN_OR_RETURN(cache_, KvCache::Create(graph_->context().cache_layers(), blocks));
    for (size_t i = 0; i < layers_.size(); ++i) layers_[i] = cache_.layer(i);
    used_blocks_ = 0;
    ahead_blocks_ = static_cast<uint32_t>(
        std::clamp<uint64_t>(kAheadBytes / std::max<uint64_t>(1, CacheBytesPerBlock()),
                             kLeastAheadBlocks, kMostAheadBlocks));
    slots_.Reset(blocks);
    collective_ = std::move(collective);
    term_ = term;
    epoch_ = epoch;
    last_step_ = 0;
    broken_ = absl::OkStatus();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<internal::StepResult>> Run(
      const internal::StepPlan& plan) override {
    const auto begin = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(CheckTurn(plan));
    if (plan.step() <= last_step_) return nullptr;
    RETURN_IF_ERROR(slots_.Check(plan));
    NoteBlocks(plan);

    last_step_ = plan.step();
    progress_.op.store(0, std::memory_order_relaxed);
    progress_.step.store(plan.step(), std::memory_order_relaxed);
    progress_.busy.store(true, std::memory_order_relaxed);
    auto result = std::make_unique<internal::StepResult>();
    absl::Status status;
    {
      const PinnedCaller pinned(*pool_);
      status = RunChecked(plan, *result);
    }
    progress_.busy.store(false, std::memory_order_relaxed);
    if (!status.ok()) {
      broken_ = status;
      return status;
    }
    result->set_term(term_);
    result->set_epoch(epoch_);
    result->set_step(plan.step());
    result->set_rank(rank_);
    const auto took = std::chrono::steady_clock::now() - begin;
    result->set_exec_us(
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
    return result;
  }

  bool TakeCacheAhead() override {
    return cache_.Touch(used_blocks_, used_blocks_ + std::min(ahead_blocks_, cache_.blocks()));
  }

  void EndEpoch() override {
    collective_.reset();
    cache_ = KvCache();
    epoch_ = term_ = 0;
    progress_.step.store(0, std::memory_order_relaxed);
    progress_.op.store(0, std::memory_order_relaxed);
  }

  const StepProgress& progress() const override { return progress_; }
  Collective* collective() override { return collective_.get(); }
  std::vector<internal::KernelChoice> Kernels() const override { return graph_->Kernels(); }
  uint64_t CacheBytesPerBlock() const override {
    return KvCache::BytesPerBlock(graph_->context().cache_layers());
  }
  uint64_t WorkspaceBytes() const override {
    return graph_->context().workspace_bytes() + SlotTable::Bytes(slots_.limits());
  }

 private:
  // Blocks are given away in the order of their ids, but for those that come back.
  void NoteBlocks(const internal::StepPlan& plan) {
    for (const uint32_t block : plan.new_blocks()) used_blocks_ = std::max(used_blocks_, block + 1);
    for (const internal::NewSequence& sequence : plan.new_sequences()) {
      for (const uint32_t block : sequence.blocks())
        used_blocks_ = std::max(used_blocks_, block + 1);
    }
  }

  absl::Status CheckTurn(const internal::StepPlan& plan) const {
    if (collective_ == nullptr) return absl::FailedPreconditionError("no epoch is running");
    if (plan.term() != term_ || plan.epoch() != epoch_) {
      return absl::FailedPreconditionError(absl::StrCat("step of term ", plan.term(), " epoch ",
                                                        plan.epoch(), ", running is term ", term_,
                                                        " epoch ", epoch_));
    }
    if (!broken_.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the epoch ended with step ", last_step_, ": ", broken_.message()));
    }
    if (plan.step() > last_step_ + 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("step ", plan.step(), " after step ", last_step_, ": a plan was lost"));
    }
    return absl::OkStatus();
  }

  absl::Status RunChecked(const internal::StepPlan& plan, internal::StepResult& result) {
    RETURN_IF_ERROR(agreement_.ComparePlans(*collective_, plan));
    slots_.Apply(plan);
    batch_.Fill(plan, slots_);
    StepState state = batch_.State();
    state.cache_layers = layers_.data();
    state.collective = collective_.get();
    state.pool = pool_;
    if (state.count() != 0) RETURN_IF_ERROR(RunOps(state));
    batch_.Pool(plan, graph_->context().final_hidden(), slots_);
    batch_.Finish(plan, slots_, result, drawn_);
    return agreement_.CompareTokens(*collective_, plan, drawn_);
  }

  absl::Status RunOps(StepState& state) {
    using Clock = std::chrono::steady_clock;
    const std::vector<std::unique_ptr<Op>>& ops = graph_->ops();
    Clock::time_point begin = profile_ == nullptr ? Clock::time_point() : Clock::now();
    for (size_t i = 0; i < ops.size(); ++i) {
      // The object of one, then what it points to: weights have driven all of it from the caches.
      if (i + 2 < ops.size()) PrefetchOp(*ops[i + 2]);
      if (i + 1 < ops.size()) ops[i + 1]->Prefetch();
      progress_.op.store(static_cast<uint64_t>(graph_->first_node(i)), std::memory_order_relaxed);
      RETURN_IF_ERROR(ops[i]->Run(state));
      if (profile_ == nullptr) continue;
      const Clock::time_point end = Clock::now();
      profile_->op_ns[i] += std::chrono::nanoseconds(end - begin).count();
      begin = end;
    }
    return absl::OkStatus();
  }

  const uint32_t rank_, world_;
  ThreadPool* const pool_;
  const std::unique_ptr<BoundGraph> graph_;
  SlotTable slots_;
  StepBatch batch_;
  Agreement agreement_;
  StepProfile* const profile_;   // null: nobody asked
  std::vector<uint32_t> drawn_;  // in the step at hand: tokens, flags, scores
  StepProgress progress_;

  // Of the running epoch.
  std::unique_ptr<Collective> collective_;
  KvCache cache_;
  uint32_t used_blocks_ = 0;   // no higher one was in a plan
  uint32_t ahead_blocks_ = 0;  // that have the host's memory beyond them
  std::vector<uint8_t*> layers_;
  uint64_t term_ = 0, epoch_ = 0, last_step_ = 0;
  absl::Status broken_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Bind(
    const internal::RankPlan& plan, std::shared_ptr<const LoadedWeights> weights,
    const Options& options) {
  CHECK(options.pool != nullptr && weights != nullptr);
  ASSIGN_OR_RETURN(BindContext::Options bind, BindOptions(plan, options));
  const uint64_t slots = SlotTable::Bytes(Limits(plan.graph(), options.numerics));
  if (slots > options.max_workspace_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options.numerics.max_slots(), " slots for sequences of ", plan.graph().context_length(),
        " tokens need ", slots, " bytes, ", options.max_workspace_bytes,
        " are left beside the weights; raise this worker's --memory, or lower the coordinator's "
        "--max-running or --max-context"));
  }
  bind.max_workspace_bytes = options.max_workspace_bytes - slots;
  ASSIGN_OR_RETURN(std::unique_ptr<BoundGraph> graph,
                   BoundGraph::Bind(plan.graph(), std::move(weights), bind));
  return std::make_unique<StepRunnerImpl>(plan, std::move(graph), options);
}

}  // namespace bitshard
