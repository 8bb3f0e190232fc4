#include "worker/service/step_thread.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_pool.h"
#include "kernels/tensor/device.h"

namespace bitshard {
namespace {

// The bar of a person watching moves often enough.
constexpr absl::Duration kProgressPeriod = absl::Milliseconds(100);

// Names the first node that runs on a fallback.
absl::Status RefuseFallbacks(const std::vector<internal::KernelChoice>& kernels, uint32_t rank) {
  for (const internal::KernelChoice& choice : kernels) {
    if (!choice.fallback()) continue;
    std::string why;
    for (const internal::RefusedChoice& refused : choice.refused())
      absl::StrAppend(&why, "; ", refused.kernel(), ": ", refused.reason());
    return absl::UnimplementedError(
        absl::StrCat("--require-kernels=fast: rank ", rank, ": ", choice.first_node(), " (",
                     choice.op(), choice.format().empty() ? "" : " ", choice.format(), ", ",
                     choice.nodes(), choice.nodes() == 1 ? " node" : " nodes",
                     ") would run on the fallback ", choice.kernel(), why));
  }
  return absl::OkStatus();
}

}  // namespace

StepThread::StepThread(WorkerBackend backend, uint64_t memory_bytes, SendFn send,
                       WorkerMetrics* metrics)
    : backend_(std::move(backend)),
      memory_bytes_(memory_bytes),
      send_(std::move(send)),
      metrics_(metrics),
      mark_(backend_.process_start),
      bring_up_(backend_.bring_up),
      thread_([this] { Loop(); }) {}

StepThread::~StepThread() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    stop_joining_ = true;
    tasks_.clear();
    if (watched_ != nullptr) watched_->Abort();
  }
  thread_.join();
  LeaveEpoch().IgnoreError();
}

void StepThread::Push(Task task) {
  absl::MutexLock lock(&mu_);
  if (!stopping_) tasks_.push_back(std::move(task));
}

void StepThread::Assign(uint64_t session, std::unique_ptr<internal::Assign> assign) {
  Push({session, std::move(assign)});
}
void StepThread::Join(uint64_t session, internal::JoinCommunicator join) {
  Push({session, std::move(join)});
}
void StepThread::Allocate(uint64_t session, internal::AllocateCache allocate) {
  Push({session, allocate});
}
void StepThread::Run(uint64_t session, std::unique_ptr<internal::StepPlan> plan) {
  Push({session, std::shared_ptr<const internal::StepPlan>(std::move(plan))});
}

void StepThread::Told(const internal::RendezvousOfAll& all) {
  absl::MutexLock lock(&mu_);
  told_ = all;
}

void StepThread::End(uint64_t session, uint64_t epoch, bool report) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return;
  // Assignments stay: a load that a lost stream asked for is of use to the next one.
  tasks_.erase(std::remove_if(tasks_.begin(), tasks_.end(),
                              [](const Task& task) {
                                return !std::holds_alternative<std::unique_ptr<internal::Assign>>(
                                           task.what) &&
                                       !std::holds_alternative<EndTask>(task.what);
                              }),
               tasks_.end());
  tasks_.push_back({session, EndTask{epoch, report}});
  ++pending_ends_;
  stop_joining_ = true;
  if (watched_ != nullptr) watched_->Abort();
}

StepThread::Held StepThread::held() const {
  absl::MutexLock lock(&mu_);
  return held_;
}

void StepThread::FillHeartbeat(internal::Heartbeat& heartbeat) const {
  absl::MutexLock lock(&mu_);
  heartbeat.set_epoch(heartbeat_epoch_);
  if (runner_ == nullptr) return;
  const StepProgress& progress = runner_->progress();
  heartbeat.set_step(progress.step.load(std::memory_order_relaxed));
  heartbeat.set_op(progress.Op());
  heartbeat.set_busy(progress.busy.load(std::memory_order_relaxed));
}

void StepThread::Loop() {
  SetFloatEnvironment();
  bool takes_ahead = false;  // the cache may lack memory for what comes next
  while (true) {
    std::optional<Task> next;
    {
      absl::MutexLock lock(&mu_);
      auto ready = [this]()
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !tasks_.empty(); };
      if (!takes_ahead) mu_.Await(absl::Condition(&ready));
      if (stopping_) return;
      if (!tasks_.empty()) {
        next = std::move(tasks_.front());
        tasks_.pop_front();
      }
    }
    if (!next.has_value()) {
      takes_ahead = epoch_state_ == EpochState::kRunning && bound_->TakeCacheAhead();
      continue;
    }
    takes_ahead = true;
    Task& task = *next;
    if (auto* assign = std::get_if<std::unique_ptr<internal::Assign>>(&task.what)) {
      DoAssign(task.session, **assign);
    } else if (auto* join = std::get_if<internal::JoinCommunicator>(&task.what)) {
      DoJoin(task.session, *join);
    } else if (auto* allocate = std::get_if<internal::AllocateCache>(&task.what)) {
      DoAllocate(task.session, *allocate);
    } else if (auto* plan = std::get_if<std::shared_ptr<const internal::StepPlan>>(&task.what)) {
      DoRun(task.session, **plan);
    } else {
      DoEnd(task.session, std::get<EndTask>(task.what));
    }
  }
}

bool StepThread::WatchCollective(Collective* collective) {
  absl::MutexLock lock(&mu_);
  watched_ = collective;
  if (pending_ends_ == 0 && !stopping_) return true;
  if (collective != nullptr) collective->Abort();
  return false;
}

uint64_t StepThread::MarkUs() {
  const auto now = std::chrono::steady_clock::now();
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now - mark_).count();
  mark_ = now;
  return us > 0 ? static_cast<uint64_t>(us) : 0;
}

void StepThread::LogBringUp() const {
  const internal::BringUp& t = bring_up_;
  const auto ms = [](uint64_t us) { return static_cast<double>(us) / 1000; };
  LogInfo(
      "worker: ready rank={} process_start_ms={:.1f} of_it_kernel_probe_ms={:.1f} "
      "registration_ms={:.1f} load_ms={:.1f} of_it_read_ms={:.1f} of_it_pack_ms={:.1f} "
      "bind_ms={:.1f} join_ms={:.1f} self_test_ms={:.1f} kv_cache_ms={:.1f} total_ms={:.1f}",
      rank_, ms(t.process_start_us()), ms(t.kernel_probe_us()), ms(t.registration_us()),
      ms(t.load_us()), ms(t.read_us()), ms(t.pack_us()), ms(t.bind_us()), ms(t.join_us()),
      ms(t.self_test_us()), ms(t.kv_cache_us()), ms(t.total_us()));
}

void StepThread::DoAssign(uint64_t session, const internal::Assign& assign) {
  if (const absl::Status left = LeaveEpoch(); !left.ok()) {
    Fail(session, /*epoch=*/0, left);
    return;
  }
  // Of a later bring-up process start and registration are those of the first.
  const uint64_t before = MarkUs();
  if (bring_up_.registration_us() == 0)
    bring_up_.set_registration_us(before - std::min(before, bring_up_.process_start_us()));
  internal::Loaded loaded;
  const absl::Status status = LoadAndBind(session, assign, loaded);
  if (!status.ok()) {
    if (metrics_ != nullptr) metrics_->OnLoadFailed(status);
    Fail(session, /*epoch=*/0, status);
    return;
  }
  internal::WorkerMessage message;
  *message.mutable_loaded() = std::move(loaded);
  send_(session, std::move(message));
}

absl::Status StepThread::LoadAndBind(uint64_t session, const internal::Assign& assign,
                                     internal::Loaded& loaded) {
  const internal::RankPlan& plan = assign.plan();
  if (plan.rank() != assign.rank() || plan.world() != assign.world() || plan.digest().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "assignment for rank ", assign.rank(), " of ", assign.world(), " carries a plan of rank ",
        plan.rank(), " of ", plan.world(), plan.digest().empty() ? " without a digest" : ""));
  }
  if (metrics_ != nullptr) metrics_->OnAssigned(plan.rank());
  Held held;
  {
    absl::MutexLock lock(&mu_);
    runner_.reset();
    bound_ = nullptr;
    held = held_;
  }
  const bool reuse =
      weights_ != nullptr && held.plan_digest == plan.digest() && held.rank == plan.rank();
  if (!reuse) {
    weights_.reset();  // first: the old and the new ones together may not fit
    {
      absl::MutexLock lock(&mu_);
      held_ = Held();
    }
    const absl::Time begin = absl::Now();
    absl::Time last = absl::InfinitePast();
    auto progress = [&](uint64_t done_bytes, uint64_t total_bytes) {
      const absl::Time now = absl::Now();
      if (done_bytes < total_bytes && now - last < kProgressPeriod) return;
      last = now;
      internal::WorkerMessage message;
      internal::Progress& out = *message.mutable_progress();
      out.set_phase(internal::Progress::LOADING);
      out.set_done_bytes(done_bytes);
      out.set_total_bytes(total_bytes);
      send_(session, std::move(message));
    };
    ASSIGN_OR_RETURN(weights_, backend_.load(plan, progress));
    const absl::Duration took = absl::Now() - begin;
    bring_up_.set_load_us(MarkUs());
    bring_up_.set_read_us(weights_->read_us);
    bring_up_.set_pack_us(weights_->pack_us);
    LogInfo("worker: weights loaded rank={} read_bytes={} arena_bytes={} seconds={:.2f}",
            plan.rank(), weights_->read_bytes, weights_->arena_bytes, absl::ToDoubleSeconds(took));
    if (metrics_ != nullptr) metrics_->OnLoaded(*weights_, took);
  }
  absl::StatusOr<std::unique_ptr<StepRunner>> runner =
      backend_.bind(plan, weights_, assign.numerics());
  {
    // Weights that loaded are worth keeping also when this binary cannot bind them with these
    // settings.
    absl::MutexLock lock(&mu_);
    held_ = {plan.digest(), plan.rank()};
    RETURN_IF_ERROR(runner.status());
    runner_ = *std::move(runner);
    bound_ = runner_.get();
  }
  rank_ = plan.rank();
  world_ = plan.world();
  term_ = assign.term();

  std::vector<internal::KernelChoice> kernels = bound_->Kernels();
  if (backend_.require_fast_kernels || assign.numerics().require_fast_kernels())
    RETURN_IF_ERROR(RefuseFallbacks(kernels, rank_));
  if (assign.numerics().nondeterministic() && bound_->deterministic()) {
    LogWarning(
        "worker: rank={} --deterministic=false changes nothing: the CPU is deterministic always",
        rank_);
  }
  bring_up_.set_bind_us(MarkUs());
  if (metrics_ != nullptr) {
    static const StepProfile kNone;
    const StepProfile& profile = backend_.profile == nullptr ? kNone : *backend_.profile;
    metrics_->OnBound(kernels, bound_->WorkspaceBytes(), profile.kinds);
    work_ = StepWork(plan.graph(), *weights_, bound_->CacheBytesPerBlock(),
                     assign.numerics().block_tokens());
  }

  const uint64_t taken = weights_->arena_bytes + bound_->WorkspaceBytes();
  const uint64_t left = memory_bytes_ > taken ? memory_bytes_ - taken : 0;
  // A rank without attention heads needs no cache memory: it takes as many blocks as the others.
  const uint64_t block_bytes = std::max<uint64_t>(1, bound_->CacheBytesPerBlock());
  const uint64_t blocks = std::min<uint64_t>(left / block_bytes, StepRunner::kMaxCacheBlocks);
  if (blocks == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", rank_, ": weights and buffers take ", taken, " of ", memory_bytes_,
                     " bytes and leave no room for a KV cache block of ", block_bytes,
                     " bytes; raise --memory, use more workers or a smaller model"));
  }
  loaded.set_weight_bytes(weights_->arena_bytes);
  loaded.set_vector_bytes(weights_->vector_bytes);
  loaded.set_padding_bytes(weights_->padding_bytes);
  loaded.set_read_bytes(reuse ? 0 : weights_->read_bytes);
  loaded.set_max_cache_blocks(blocks);
  loaded.set_nondeterministic(!bound_->deterministic());
  for (internal::KernelChoice& choice : kernels) *loaded.add_kernels() = std::move(choice);
  for (const internal::ProbeFigure& figure : backend_.probe) *loaded.add_probe() = figure;
  return absl::OkStatus();
}

void StepThread::DoJoin(uint64_t session, const internal::JoinCommunicator& join) {
  const absl::Status left = LeaveEpoch();
  epoch_ = join.epoch();
  if (!left.ok()) {
    Fail(session, epoch_, left);
    return;
  }
  if (bound_ == nullptr) {
    Fail(session, epoch_,
         absl::FailedPreconditionError("asked to join a communicator before weights are loaded"));
    return;
  }
  absl::StatusOr<std::unique_ptr<Collective>> collective = backend_.join(
      join, static_cast<int>(rank_), static_cast<int>(world_),
      [&](const std::string& mine) { return TellRanks(session, join, mine); }, stop_joining_);
  if (!collective.ok()) {
    Fail(session, epoch_, collective.status());
    return;
  }
  bring_up_.set_join_us(MarkUs());
  joined_ = *std::move(collective);
  if (!WatchCollective(joined_.get())) return;  // DoEnd comes next
  const absl::Status tested = backend_.self_test(*joined_);
  if (!tested.ok()) {
    Fail(session, epoch_, tested);
    return;
  }
  bring_up_.set_self_test_us(MarkUs());
  epoch_state_ = EpochState::kJoined;
  internal::WorkerMessage message;
  message.mutable_joined()->set_epoch(epoch_);
  send_(session, std::move(message));
}

absl::StatusOr<std::vector<std::string>> StepThread::TellRanks(
    uint64_t session, const internal::JoinCommunicator& join, const std::string& mine) {
  internal::WorkerMessage message;
  message.mutable_rendezvous()->set_epoch(join.epoch());
  message.mutable_rendezvous()->set_data(mine);
  send_(session, std::move(message));
  absl::MutexLock lock(&mu_);
  auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || pending_ends_ > 0 || (told_.has_value() && told_->epoch() == join.epoch());
  };
  if (!mu_.AwaitWithTimeout(absl::Condition(&over), absl::Milliseconds(join.timeout_ms()))) {
    return absl::UnavailableError(
        absl::StrCat("not all ranks told where they are within ", join.timeout_ms(), " ms"));
  }
  if (stopping_ || pending_ends_ > 0) return absl::CancelledError("called off");
  return std::vector<std::string>(told_->data().begin(), told_->data().end());
}

void StepThread::DoAllocate(uint64_t session, const internal::AllocateCache& allocate) {
  if (epoch_state_ != EpochState::kJoined || allocate.epoch() != epoch_) {
    Fail(session, allocate.epoch(),
         absl::FailedPreconditionError(absl::StrCat("asked to allocate the cache of epoch ",
                                                    allocate.epoch(), ", which was not joined")));
    return;
  }
  // It stays watched: the runner keeps it, and what gets ready may wait for other ranks.
  if (metrics_ != nullptr) joined_ = MakeTimedCollective(std::move(joined_), metrics_);
  absl::Status status = bound_->StartEpoch(term_, epoch_, std::move(joined_), allocate.blocks());
  if (!status.ok()) {
    Fail(session, epoch_, status);
    return;
  }
  if (!WatchCollective(bound_->collective())) return;
  epoch_state_ = EpochState::kRunning;
  {
    absl::MutexLock lock(&mu_);
    heartbeat_epoch_ = epoch_;
  }
  if (metrics_ != nullptr)
    metrics_->OnCacheAllocated(bound_->CacheBytesPerBlock() * allocate.blocks());
  LogInfo("worker: epoch begins rank={} term={} epoch={} cache_blocks={}", rank_, term_, epoch_,
          allocate.blocks());
  internal::WorkerMessage message;
  message.mutable_ready()->set_epoch(epoch_);
  bring_up_.set_kv_cache_us(MarkUs());
  if (bring_up_.total_us() == 0) {  // a later epoch's waits are not part of the first bring-up
    const auto total = mark_ - backend_.process_start;
    bring_up_.set_total_us(static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(total).count()));
    LogBringUp();
    first_bring_up_ = bring_up_;
    if (metrics_ != nullptr) metrics_->OnBringUp(first_bring_up_);
  }
  *message.mutable_ready()->mutable_bring_up() = first_bring_up_;
  send_(session, std::move(message));
  if (backend_.measure_memory) {
    internal::WorkerMessage memory;
    *memory.mutable_memory_report() = backend_.measure_memory();
    send_(session, std::move(memory));
  }
}

void StepThread::DoRun(uint64_t session, const internal::StepPlan& plan) {
  if (epoch_state_ == EpochState::kFailed && plan.epoch() == epoch_) return;  // said so already
  if (epoch_state_ != EpochState::kRunning) {
    Fail(session, plan.epoch(),
         absl::FailedPreconditionError(absl::StrCat("step ", plan.step(), " of epoch ",
                                                    plan.epoch(), ": no epoch is running here")));
    return;
  }
  absl::StatusOr<std::unique_ptr<internal::StepResult>> result =
      bound_->Run(plan, [this] { return NextPlan(); });
  if (!result.ok()) {
    Fail(session, epoch_, result.status());
    return;
  }
  if (*result == nullptr) return;  // a duplicate
  if (metrics_ != nullptr) CountStep(plan, **result);
  // In each step the ranks met, and compared what they drew: one of them speaks for all.
  if (rank_ != 0) return;
  internal::WorkerMessage message;
  message.set_allocated_step_result(result->release());
  send_(session, std::move(message));
}

std::shared_ptr<const internal::StepPlan> StepThread::NextPlan() const {
  absl::MutexLock lock(&mu_);
  if (tasks_.empty()) return nullptr;
  const auto* const plan =
      std::get_if<std::shared_ptr<const internal::StepPlan>>(&tasks_.front().what);
  return plan == nullptr ? nullptr : *plan;
}

void StepThread::CountStep(const internal::StepPlan& plan, const internal::StepResult& result) {
  if (plan.slot().empty()) {
    metrics_->OnIdleStep();
    return;
  }
  static const std::vector<int64_t> kNone;
  metrics_->OnStep(absl::Microseconds(static_cast<int64_t>(result.exec_us())),
                   static_cast<uint64_t>(result.outputs_size()), work_.Of(plan),
                   backend_.profile == nullptr ? kNone : backend_.profile->op_ns,
                   bound_->progress().launched_ahead.load(std::memory_order_relaxed));
}

void StepThread::DoEnd(uint64_t session, const EndTask& end) {
  const absl::Status left = LeaveEpoch();
  {
    absl::MutexLock lock(&mu_);
    if (--pending_ends_ == 0 && !stopping_) stop_joining_ = false;
  }
  if (!left.ok()) {  // nothing is intact
    Fail(session, end.epoch, left);
    return;
  }
  if (!end.report) return;
  internal::WorkerMessage message;
  message.mutable_quiesced()->set_epoch(end.epoch);
  message.mutable_quiesced()->set_weights_intact(weights_ != nullptr);
  send_(session, std::move(message));
}

absl::Status StepThread::LeaveEpoch() {
  {
    absl::MutexLock lock(&mu_);
    watched_ = nullptr;
    told_.reset();
    heartbeat_epoch_ = 0;
  }
  const absl::Status left = bound_ == nullptr ? absl::OkStatus() : bound_->EndEpoch();
  joined_.reset();
  epoch_state_ = EpochState::kNone;
  return left;
}

void StepThread::Fail(uint64_t session, uint64_t epoch, const absl::Status& status) {
  if (epoch != 0) epoch_state_ = EpochState::kFailed;
  const bool lost = IsDeviceLost(status);
  if (lost && std::exchange(lost_, true)) return;
  {
    absl::MutexLock lock(&mu_);
    // Aborted on request: the coordinator gets Quiesced, and nobody is to blame.
    if (!lost && (stopping_ || (epoch != 0 && pending_ends_ > 0))) return;
  }
  if (IsCollectiveAbort(status)) {  // as when the group ends in order: another rank was told first
    LogInfo("worker: rank={} term={} epoch={}: {}", rank_, term_, epoch,
            std::string(status.message()));
  } else {
    LogError("worker: rank={} term={} epoch={}: {}", rank_, term_, epoch, status.ToString());
  }
  internal::WorkerMessage message;
  internal::Failure& failure = *message.mutable_failure();
  failure.set_code(static_cast<uint32_t>(status.code()));
  failure.set_message(std::string(status.message()));
  failure.set_epoch(epoch);
  failure.set_fatal(lost);
  send_(session, std::move(message));
  if (lost && backend_.on_device_lost) backend_.on_device_lost();
}

}  // namespace bitshard
