#include "worker/step/step_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/device.h"
#include "worker/load/loader.h"
#include "worker/step/agreement.h"
#include "worker/step/cpu_executor.h"
#include "worker/step/graph_executor.h"
#include "worker/step/slot_table.h"
#include "worker/step/step_batch.h"
#include "worker/step/step_numerics.h"

namespace bitshard {
namespace {

using internal::NumericsOptions;

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
  ASSIGN_OR_RETURN(out.cache_type, CacheTypeOf(numerics));
  RETURN_IF_ERROR(CheckStepNumerics(plan, numerics));
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

class StepRunnerImpl final : public StepRunner {
 public:
  StepRunnerImpl(const internal::RankPlan& plan, std::unique_ptr<GraphExecutor> executor,
                 const Options& options)
      : rank_(plan.rank()),
        world_(plan.world()),
        pool_(options.pool),
        executor_(std::move(executor)),
        slots_(SlotLimitsOf(plan.graph(), options.numerics)),
        batch_(MakeBatch(options)),
        next_batch_(executor_->on_host() ? nullptr : MakeBatch(options)),
        agreement_(static_cast<int>(plan.world())) {
    drawn_.reserve(3 * options.numerics.max_slots() + options.numerics.max_step_tokens());
  }
  // A device lets go of a communicator in its own order.
  ~StepRunnerImpl() override { EndEpoch().IgnoreError(); }

  absl::Status StartEpoch(uint64_t term, uint64_t epoch, std::unique_ptr<Collective> collective,
                          uint32_t blocks) override {
    const absl::Status ended = EndEpoch();
    collective_ = std::move(collective);
    broken_ = absl::FailedPreconditionError("it did not begin");
    RETURN_IF_ERROR(ended);
    if (static_cast<uint32_t>(collective_->rank()) != rank_ ||
        static_cast<uint32_t>(collective_->world()) != world_) {
      return absl::InvalidArgumentError(absl::StrCat("communicator of rank ", collective_->rank(),
                                                     " of ", collective_->world(),
                                                     ", plan of rank ", rank_, " of ", world_));
    }
    if (blocks == 0 || blocks > kMaxCacheBlocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("a cache of ", blocks, " blocks (1 to ", kMaxCacheBlocks, ")"));
    }
    RETURN_IF_ERROR(executor_->StartEpoch(*collective_, blocks));
    used_blocks_ = 0;
    slots_.Reset(blocks);
    term_ = term;
    epoch_ = epoch;
    last_step_ = 0;
    broken_ = absl::OkStatus();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<internal::StepResult>> Run(const internal::StepPlan& plan,
                                                            NextPlanFn next) override {
    const Clock::time_point now = Clock::now();
    RETURN_IF_ERROR(CheckTurn(plan));
    if (plan.step() <= last_step_) return nullptr;
    const Ahead ahead = std::exchange(ahead_, Ahead());
    CHECK(ahead.plan == nullptr || ahead.plan.get() == &plan);
    if (ahead.plan == nullptr) {
      RETURN_IF_ERROR(slots_.Check(plan));
      NoteBlocks(plan);
    }

    last_step_ = plan.step();
    progress_.op.store(0, std::memory_order_relaxed);
    progress_.step.store(plan.step(), std::memory_order_relaxed);
    progress_.busy.store(true, std::memory_order_relaxed);
    auto result = std::make_unique<internal::StepResult>();
    absl::Status status;
    {
      const PinnedCaller pinned(*pool_);
      status = RunChecked(plan, ahead, next, *result);
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
    // From launch to launch, where steps follow without a gap.
    const auto took = (ahead_.launched ? ahead_.launch_time : Clock::now()) -
                      (ahead.launched ? ahead.launch_time : now);
    result->set_exec_us(
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
    return result;
  }

  bool TakeCacheAhead() override { return executor_->TakeCacheAhead(used_blocks_); }

  absl::Status EndEpoch() override {
    ahead_ = Ahead();
    const absl::Status ended = executor_->EndEpoch(std::move(collective_));
    epoch_ = term_ = 0;
    progress_.step.store(0, std::memory_order_relaxed);
    progress_.op.store(0, std::memory_order_relaxed);
    progress_.device_op.store(nullptr, std::memory_order_release);
    return ended;
  }

  const StepProgress& progress() const override { return progress_; }
  Collective* collective() override { return collective_.get(); }
  std::vector<internal::KernelChoice> Kernels() const override { return executor_->Kernels(); }
  uint64_t CacheBytesPerBlock() const override { return executor_->CacheBytesPerBlock(); }
  bool deterministic() const override { return executor_->deterministic(); }
  uint64_t WorkspaceBytes() const override {
    return executor_->WorkspaceBytes() +
           (executor_->on_host() ? SlotTable::Bytes(slots_.limits()) : 0);
  }

 private:
  using Clock = std::chrono::steady_clock;

  // What has been done for the next plan; null: nothing.
  struct Ahead {
    std::shared_ptr<const internal::StepPlan> plan;
    uint64_t hash = 0;
    bool launched = false;  // and compared before
    Clock::time_point launch_time;
  };

  std::unique_ptr<StepBatch> MakeBatch(const Options& options) const {
    return std::make_unique<StepBatch>(slots_.limits(),
                                       /*score_last=*/options.logits_tap != nullptr);
  }

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

  absl::Status RunChecked(const internal::StepPlan& plan, const Ahead& ahead, NextPlanFn next,
                          internal::StepResult& result) {
    if (!ahead.launched) {
      const uint64_t hash = ahead.plan != nullptr ? ahead.hash : HashPlan(plan);
      RETURN_IF_ERROR(agreement_.ComparePlans(*collective_, plan, hash));
    }
    if (ahead.plan != nullptr) {
      std::swap(batch_, next_batch_);
    } else {
      slots_.Apply(plan);
      batch_->Fill(plan, slots_);
    }
    StepState state = StateOf(*batch_);
    if (state.count() != 0) {
      if (!ahead.launched) {
        if (ahead.plan != nullptr) batch_->TakeTokens(plan, slots_);
        RETURN_IF_ERROR(executor_->Launch(state, progress_));
      }
      bool waits = true;  // for the next plan
      RETURN_IF_ERROR(executor_->Collect(state, [&] {
        if (waits) waits = !LookAhead(plan, next());
      }));
      batch_->Pool(plan, executor_->final_hidden(), slots_);
    }
    batch_->Finish(plan, slots_, result, drawn_);
    ASSIGN_OR_RETURN(const bool compared,
                     agreement_.CompareTokens(*collective_, plan, drawn_, ahead_.hash));
    if (compared) {
      RETURN_IF_ERROR(WithContext(LaunchAhead(), absl::StrCat("step ", plan.step() + 1, ": ")));
    }
    batch_->WriteOutputs(plan, result);
    return absl::OkStatus();
  }

  StepState StateOf(StepBatch& batch) const {
    StepState state = batch.State();
    state.collective = collective_.get();
    return state;
  }

  // While `plan` is computed: gets `then` ready. False while there is no such plan; also one for
  // which nothing can be done now is seen once.
  bool LookAhead(const internal::StepPlan& plan, std::shared_ptr<const internal::StepPlan> then) {
    if (then == nullptr) return false;
    // What is wrong with it will be said when its turn comes.
    if (then->slot().empty() || then->step() != last_step_ + 1 || !CheckTurn(*then).ok() ||
        !IsIndependent(*then, plan) || !slots_.Check(*then).ok()) {
      return true;
    }
    NoteBlocks(*then);
    slots_.Apply(*then);
    next_batch_->Fill(*then, slots_);
    executor_->Prepare(StateOf(*next_batch_));
    ahead_.hash = HashPlan(*then);
    ahead_.plan = std::move(then);
    return true;
  }

  // `then` takes no slot from `plan`, and what that samples is no more to it than the next token:
  // it does not score it. (Pooled vectors that are not far enough are Check's affair.)
  static bool IsIndependent(const internal::StepPlan& then, const internal::StepPlan& plan) {
    const auto has_row = [&plan](uint32_t slot) {
      return std::find(plan.slot().begin(), plan.slot().end(), slot) != plan.slot().end();
    };
    for (const internal::NewSequence& sequence : then.new_sequences()) {
      if (has_row(sequence.slot())) return false;
    }
    for (int r = 0; r < then.slot_size(); ++r) {
      if ((then.flags(r) & internal::ROW_SCORE) != 0 && has_row(then.slot(r))) return false;
    }
    return true;
  }

  absl::Status LaunchAhead() {
    next_batch_->TakeTokens(*ahead_.plan, slots_);
    ahead_.launch_time = Clock::now();
    ahead_.launched = true;
    progress_.launched_ahead.fetch_add(1, std::memory_order_relaxed);
    StepState state = StateOf(*next_batch_);
    return executor_->Launch(state, progress_);
  }

  const uint32_t rank_, world_;
  ThreadPool* const pool_;
  const std::unique_ptr<GraphExecutor> executor_;
  SlotTable slots_;
  std::unique_ptr<StepBatch> batch_;
  std::unique_ptr<StepBatch> next_batch_;  // null: the host computes, and nothing is planned ahead
  Agreement agreement_;
  std::vector<uint32_t> drawn_;  // in the step at hand: tokens, flags, scores
  StepProgress progress_;

  // Of the running epoch.
  std::unique_ptr<Collective> collective_;
  Ahead ahead_;
  uint32_t used_blocks_ = 0;  // no higher one was in a plan
  uint64_t term_ = 0, epoch_ = 0, last_step_ = 0;
  absl::Status broken_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StepRunner>> StepRunner::Bind(
    const internal::RankPlan& plan, std::shared_ptr<const LoadedWeights> weights,
    const Options& options) {
  CHECK(options.pool != nullptr && weights != nullptr);
  ASSIGN_OR_RETURN(BindContext::Options bind, BindOptions(plan, options));
  const uint64_t slots = SlotTable::Bytes(SlotLimitsOf(plan.graph(), options.numerics));
  if (slots > options.max_workspace_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options.numerics.max_slots(), " slots for sequences of ", plan.graph().context_length(),
        " tokens need ", slots, " bytes, ", options.max_workspace_bytes,
        " are left beside the weights; raise this worker's --memory, or lower the coordinator's "
        "--max-running or --max-context"));
  }
  bind.max_workspace_bytes = options.max_workspace_bytes - slots;
  ASSIGN_OR_RETURN(std::unique_ptr<GraphExecutor> executor,
                   MakeCpuExecutor(plan.graph(), std::move(weights), bind, options.profile));
  return Over(plan, std::move(executor), options);
}

std::unique_ptr<StepRunner> StepRunner::Over(const internal::RankPlan& plan,
                                             std::unique_ptr<GraphExecutor> executor,
                                             const Options& options) {
  return std::make_unique<StepRunnerImpl>(plan, std::move(executor), options);
}

}  // namespace bitshard
