#include "worker/device/device_executor.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "worker/cache/kv_cache.h"
#include "worker/collective/device_collective.h"
#include "worker/collective/event_wait.h"
#include "worker/device/device_batch.h"
#include "worker/device/device_bind_context.h"
#include "worker/device/device_buckets.h"
#include "worker/device/device_cache.h"
#include "worker/device/device_head.h"
#include "worker/device/device_logits.h"
#include "worker/device/device_op.h"
#include "worker/device/device_profile.h"
#include "worker/ops/sample.h"
#include "worker/step/kernel_report.h"
#include "worker/step/step_numerics.h"

namespace bitshard {
namespace {

const RegisterDeviceOp kLmHead(internal::Node::kLmHead, "lm_head", /*bind=*/nullptr);
const RegisterDeviceOp kSample(internal::Node::kSample, "sample", /*bind=*/nullptr);

// Up to here kernels may differ from one power of two to the next.
constexpr int64_t kFewTokens = 32;
constexpr absl::Duration kSumPatience = absl::Seconds(2);  // at the end of an epoch

class DeviceExecutor final : public GraphExecutor, public ScoreLogits {
 public:
  DeviceExecutor(const internal::RankPlan& plan, std::shared_ptr<const LoadedWeights> weights,
                 const DeviceOptions& device, const StepRunner::Options& options)
      : graph_(plan.graph()),
        weights_(std::move(weights)),
        device_(*device.device),
        use_(device.use),
        tap_(options.logits_tap),
        profile_ops_(device.profile_ops),
        use_graphs_(device.use_graphs && !device.profile_ops),
        scan_(device.scan_logits),
        end_patience_(device.end_patience),
        deterministic_(!options.numerics.nondeterministic()),
        max_tokens_(options.numerics.max_step_tokens()) {}

  // Buffers go when nothing uses them any more. A lost device's process ends without this.
  ~DeviceExecutor() override {
    EndEpoch(nullptr).IgnoreError();
    if (use_ != nullptr) use_->workspace_bytes = use_->pinned_bytes = 0;
  }

  absl::Status Bind(const StepRunner::Options& options, uint32_t world);

  absl::Status StartEpoch(Collective& collective, uint32_t blocks) override;
  absl::Status EndEpoch(std::unique_ptr<Collective> collective) override;
  absl::Status Launch(StepState& step, StepProgress& progress) override;
  absl::Status Collect(StepState& step, absl::FunctionRef<void()> meanwhile) override;
  void Prepare(const StepState& next) override;
  const float* final_hidden() const override { return hidden_.as<float>(); }
  bool TakeCacheAhead(uint32_t) override { return false; }

  // ScoreLogits: of scored tokens, while the sample op runs.
  absl::Status Compute(StepState& step, absl::Span<const ScoredToken> tokens) override;

  std::vector<internal::KernelChoice> Kernels() const override;
  uint64_t CacheBytesPerBlock() const override {
    return KvCache::BytesPerBlock(context_->cache_layers());
  }
  uint64_t WorkspaceBytes() const override { return context_->workspace_bytes(); }
  bool on_host() const override { return false; }
  bool deterministic() const override { return deterministic_; }

 private:
  absl::Status PrepareEpoch(uint32_t blocks);
  // All ranks add up in the same way, or none begins.
  absl::Status CompareNumerics();
  absl::Status CaptureGraphs();
  // A step of padding without a graph, with logits of `outputs` rows.
  absl::Status RunPadding(int64_t tokens, int64_t max_context, int64_t outputs);
  absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(int64_t tokens, int64_t max_context);
  // The angles of the positions and all ops up to lm_head, for `tokens` rows.
  absl::Status EnqueueTrunk(const DeviceStep& step);
  DeviceStep StepOf(int64_t tokens, int64_t max_context) const;
  // Until everything on the stream is over.
  absl::Status Await();
  // The same for so long, without the communicator. A lost device when it was not enough.
  absl::Status AwaitEnd(absl::Duration patience);
  // Whoever saw the error first: when the device is lost, that is what is said.
  absl::Status Blame(const absl::Status& status);
  absl::Status LaunchOnDevice(StepState& step, StepProgress& progress);
  absl::Status CollectFromDevice(StepState& step, absl::FunctionRef<void()> meanwhile);
  // Of the captured graphs of `tokens` rows and more those of the fewest; none for many tokens.
  std::optional<size_t> BucketOf(int64_t tokens) const {
    return graphs_.empty() ? std::nullopt : buckets_.TokensFor(tokens);
  }
  int64_t PaddedCount(int64_t tokens) const {
    const std::optional<size_t> bucket = BucketOf(tokens);
    return bucket.has_value() ? buckets_.tokens()[*bucket] : tokens;
  }
  void Tap(uint32_t slot, uint32_t position, int64_t row) const;

  const internal::ModelGraph graph_;
  const std::shared_ptr<const LoadedWeights> weights_;  // with the service, which may bind again
  Device& device_;
  DeviceMemoryUse* const use_;  // null: nobody asks
  const decltype(StepRunner::Options::logits_tap) tap_;
  const bool profile_ops_, use_graphs_, scan_;
  const absl::Duration end_patience_;
  const bool deterministic_;
  const int64_t max_tokens_;
  int64_t max_outputs_ = 0;
  DeviceBuckets buckets_{1, 1, 1};  // until the graph has been checked

  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> event_;
  std::unique_ptr<DeviceBindContext> context_;
  std::vector<std::unique_ptr<DeviceOp>> trunk_;
  std::unique_ptr<DeviceHead> head_;
  int head_node_ = 0;
  std::unique_ptr<Op> sample_;
  DeviceLogits* logits_ = nullptr;  // the op's
  std::unique_ptr<DeviceBatch> batch_;
  uint8_t* device_poisoned_ = nullptr;  // [max_tokens]
  DeviceBuffer poisoned_;               // the same on the host
  DeviceBuffer hidden_;                 // [max_tokens, hidden], on the host
  DeviceBuffer word_;                   // how far the device has come
  uint64_t* device_word_ = nullptr;
  DeviceProfile profile_;

  // Of the last epoch, while the device may still work on what it owns.
  std::unique_ptr<Collective> ended_collective_;

  // Of the running epoch.
  DeviceCollective* collective_ = nullptr;
  DeviceCache cache_;
  bool prepared_ = false;  // what is launched next is in batch_, but for its tokens
  std::vector<std::vector<std::unique_ptr<DeviceGraph>>> graphs_;  // by bucket: tokens, context
};

absl::Status DeviceExecutor::Bind(const StepRunner::Options& options, uint32_t world) {
  DeviceBindContext::Options bind;
  bind.device = &device_;
  ASSIGN_OR_RETURN(bind.cache_type, CacheTypeOf(options.numerics));
  if (options.numerics.activations() == internal::NumericsOptions::ACTIVATIONS_A8)
    bind.activations = ActivationMode::kA8;
  bind.max_step_tokens = max_tokens_;
  max_outputs_ = std::min<int64_t>(max_tokens_, options.numerics.max_slots());
  bind.max_outputs = max_outputs_;
  bind.world = world;
  bind.deterministic = deterministic_;
  bind.max_workspace_bytes = options.max_workspace_bytes;
  ASSIGN_OR_RETURN(stream_, device_.NewStream());
  ASSIGN_OR_RETURN(event_, device_.NewEvent());
  ASSIGN_OR_RETURN(context_, DeviceBindContext::Create(graph_, *weights_, bind, *stream_));
  const int64_t context = static_cast<int64_t>(graph_.context_length());
  buckets_ = DeviceBuckets(max_tokens_, options.numerics.max_slots(), context);

  head_node_ = graph_.nodes_size() - 2;
  if (head_node_ < 0 || !graph_.nodes(head_node_).has_lm_head()) {
    return absl::UnimplementedError("graph: on a device its last nodes must be LmHead and Sample");
  }
  for (const NodeGroup& group : context_->groups()) {
    if (group.first >= head_node_) break;
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceOp> op, BindDeviceGroup(group, *context_));
    trunk_.push_back(std::move(op));
  }
  RETURN_IF_ERROR(context_->MakeAttentionScratch());
  ASSIGN_OR_RETURN(head_, BindDeviceHead(head_node_, *context_));

  const internal::Node& sample = graph_.nodes(head_node_ + 1);
  ASSIGN_OR_RETURN(Sampler::Options sampler, SamplerOptionsOf(sample, *context_));
  sampler.max_outputs = static_cast<int>(bind.max_outputs);
  sampler.world = static_cast<int>(world);
  sampler.isa = options.isa;
  sampler.pool = options.pool;
  DeviceLogits::Options rows;
  rows.sampler = sampler;
  rows.logits = head_->logits();
  rows.scan = scan_;
  rows.await = [this] { return Await(); };
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceLogits> logits, DeviceLogits::Create(rows, *context_));
  logits_ = logits.get();
  ASSIGN_OR_RETURN(sample_, MakeSampleOp(sampler, std::move(logits), this));

  DeviceBatch::Limits limits;
  limits.tokens = max_tokens_;
  limits.rows = options.numerics.max_slots();
  limits.outputs = bind.max_outputs;
  limits.context = context;
  ASSIGN_OR_RETURN(batch_, DeviceBatch::Create(limits, *context_));
  const uint64_t tokens = static_cast<uint64_t>(max_tokens_);
  ASSIGN_OR_RETURN(device_poisoned_, context_->Scratch(tokens));
  const uint64_t hidden = static_cast<uint64_t>(head_->hidden());
  ASSIGN_OR_RETURN(poisoned_, context_->Pinned(tokens));
  ASSIGN_OR_RETURN(hidden_, context_->Pinned(CheckedProduct({tokens, hidden, sizeof(float)})));
  ASSIGN_OR_RETURN(word_, context_->Pinned(sizeof(uint64_t)));
  *word_.as<uint64_t>() = 0;
  ASSIGN_OR_RETURN(void* const word, device_.Mapped(word_));
  device_word_ = static_cast<uint64_t*>(word);
  if (use_ != nullptr) {
    use_->workspace_bytes = context_->workspace_bytes();
    use_->pinned_bytes = context_->pinned_bytes();
  }
  const std::vector<NodeGroup>& groups = context_->groups();
  const auto head = groups.begin() + static_cast<ptrdiff_t>(trunk_.size());
  RETURN_IF_ERROR(
      profile_.Bind(device_, graph_, {groups.begin(), head}, profile_ops_, options.profile));
  return device_.Sync(*stream_);
}

absl::Status DeviceExecutor::StartEpoch(Collective& collective, uint32_t blocks) {
  collective_ = collective.device_collective();
  if (collective_ == nullptr) {
    return absl::InvalidArgumentError(
        "this rank computes on a device and was given a communicator of the host's memory; all "
        "workers of a group need a --device of one kind");
  }
  *word_.as<uint64_t>() = 0;
  collective_->SetProgressWord(word_.as<uint64_t>());
  return Blame(PrepareEpoch(blocks));
}

absl::Status DeviceExecutor::PrepareEpoch(uint32_t blocks) {
  RETURN_IF_ERROR(CompareNumerics());
  if (context_->sums().bytes() > 0)
    RETURN_IF_ERROR(collective_->OpenWindow(context_->sums(), *stream_));
  ASSIGN_OR_RETURN(cache_,
                   DeviceCache::Create(device_, context_->cache_layers(), blocks, *stream_));
  if (use_ != nullptr) use_->kv_cache_bytes = cache_.bytes();
  if (use_graphs_) RETURN_IF_ERROR(CaptureGraphs());
  collective_->SetConnected();
  return device_.Sync(*stream_);
}

absl::Status DeviceExecutor::CompareNumerics() {
  const uint8_t mine = deterministic_ ? 1 : 0;
  std::vector<uint8_t> all(static_cast<size_t>(collective_->world()));
  RETURN_IF_ERROR(collective_->AllGather(absl::MakeConstSpan(&mine, 1), absl::MakeSpan(all)));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == mine) continue;
    const auto name = [](bool deterministic) { return deterministic ? "int64" : "f32"; };
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks disagree: rank ", collective_->rank(), " adds up in ", name(deterministic_),
        ", rank ", rank, " in ", name(all[rank] != 0),
        " (--deterministic of the coordinator): start all workers from one build and let one "
        "coordinator assign them"));
  }
  return absl::OkStatus();
}

absl::Status DeviceExecutor::CaptureGraphs() {
  const int64_t most = buckets_.tokens().back();
  graphs_.resize(buckets_.tokens().size());
  for (size_t t = 0; t < graphs_.size(); ++t) {
    const int64_t tokens = buckets_.tokens()[t];
    // Once without: kernels are loaded, the collective connects what it needs. Which kernels these
    // are depends on the tokens and on the logits' rows. The context only makes launches larger, so
    // that one bucket of tokens stands for all.
    RETURN_IF_ERROR(RunPadding(tokens, buckets_.contexts().front(), tokens));
    for (size_t c = 1; t == 0 && c < buckets_.contexts().size(); ++c)
      RETURN_IF_ERROR(RunPadding(tokens, buckets_.contexts()[c], /*outputs=*/1));
    for (const int64_t context : buckets_.contexts()) {
      ASSIGN_OR_RETURN(std::unique_ptr<DeviceGraph> graph, Capture(tokens, context));
      graphs_[t].push_back(std::move(graph));
    }
  }
  // Steps of more tokens, which run without a graph.
  for (int64_t tokens = 2 * most; tokens < std::min(max_tokens_, 2 * kFewTokens); tokens *= 2)
    RETURN_IF_ERROR(RunPadding(tokens, buckets_.contexts().front(), /*outputs=*/1));
  if (max_tokens_ <= most) return absl::OkStatus();
  return RunPadding(max_tokens_, buckets_.contexts().back(), max_outputs_);
}

absl::Status DeviceExecutor::RunPadding(int64_t tokens, int64_t max_context, int64_t outputs) {
  outputs = std::min(outputs, max_outputs_);
  batch_->FillPadding(tokens, outputs);  // its rows touch no cache
  RETURN_IF_ERROR(batch_->Send(device_, *stream_));
  const DeviceStep step = StepOf(tokens, max_context);
  RETURN_IF_ERROR(EnqueueTrunk(step));
  RETURN_IF_ERROR(head_->Enqueue(batch_->sampled_rows(), outputs, step));
  RETURN_IF_ERROR(logits_->EnqueueAll(outputs, step));
  return Await();
}

absl::StatusOr<std::unique_ptr<DeviceGraph>> DeviceExecutor::Capture(int64_t tokens,
                                                                     int64_t max_context) {
  RETURN_IF_ERROR(device_.BeginCapture(*stream_));
  const absl::Status enqueued = EnqueueTrunk(StepOf(tokens, max_context));
  absl::StatusOr<std::unique_ptr<DeviceGraph>> graph = device_.EndCapture(*stream_);
  RETURN_IF_ERROR(enqueued);
  return graph;
}

DeviceStep DeviceExecutor::StepOf(int64_t tokens, int64_t max_context) const {
  DeviceStep step;
  step.tokens = tokens;
  step.arrays = batch_->Tokens(tokens);
  step.max_context = max_context;
  step.poisoned = device_poisoned_;
  step.cache_layers = cache_.layers();
  step.progress = device_word_;
  step.device = &device_;
  step.kernels = device_.kernels();
  step.collective = collective_;
  step.stream = stream_.get();
  return step;
}

absl::Status DeviceExecutor::EnqueueTrunk(const DeviceStep& step) {
  RETURN_IF_ERROR(
      device_.Fill(device_poisoned_, 0, static_cast<size_t>(step.tokens), *step.stream));
  RETURN_IF_ERROR(context_->EnqueueAngles(step.arrays, step.tokens, *step.stream));
  for (size_t i = 0; i < trunk_.size(); ++i) {
    RETURN_IF_ERROR(profile_.BeginOp(i, *step.stream));
    RETURN_IF_ERROR(trunk_[i]->Enqueue(step));
  }
  return profile_.BeginOp(trunk_.size(), *step.stream);
}

absl::Status DeviceExecutor::Await() {
  RETURN_IF_ERROR(device_.Record(*event_, *stream_));
  return collective_->Await(*event_);
}

absl::Status DeviceExecutor::AwaitEnd(absl::Duration patience) {
  if (event_ == nullptr) return absl::OkStatus();  // nothing was bound
  RETURN_IF_ERROR(device_.Record(*event_, *stream_));
  ASSIGN_OR_RETURN(bool ended, PassedWithin(device_, *event_, patience));
  if (ended && ended_collective_ != nullptr && ended_collective_->device_collective() != nullptr) {
    RETURN_IF_ERROR(ended_collective_->device_collective()->RecordOwnWork(*event_));
    ASSIGN_OR_RETURN(ended, PassedWithin(device_, *event_, patience));
  }
  if (ended) return absl::OkStatus();
  return DeviceLostError(absl::StrCat(
      "the device still works ", absl::FormatDuration(patience),
      " after everything was called off: a kernel that never ends, as NCCL's before 2.29.7 may be "
      "when a peer is gone. This process must end and be started again"));
}

absl::Status DeviceExecutor::Blame(const absl::Status& status) {
  if (status.ok() || IsDeviceLost(status)) return status;
  const absl::Status device = device_.Done(*event_).status();
  return IsDeviceLost(device) ? WithContext(device, absl::StrCat(status.message(), "; ")) : status;
}

void DeviceExecutor::Prepare(const StepState& next) {
  batch_->Fill(next, PaddedCount(next.count()));
  prepared_ = true;
}

absl::Status DeviceExecutor::Launch(StepState& step, StepProgress& progress) {
  return Blame(LaunchOnDevice(step, progress));
}

absl::Status DeviceExecutor::LaunchOnDevice(StepState& step, StepProgress& progress) {
  profile_.BeginStep();
  const int64_t count = step.count();
  __atomic_store_n(word_.as<uint64_t>(), uint64_t{0}, __ATOMIC_RELAXED);
  progress.device_op.store(word_.as<uint64_t>(), std::memory_order_release);
  const std::optional<size_t> bucket = BucketOf(count);
  const int64_t tokens = PaddedCount(count);
  if (std::exchange(prepared_, false)) {
    batch_->FillTokens(step);
  } else {
    batch_->Fill(step, tokens);
  }
  RETURN_IF_ERROR(batch_->Send(device_, *stream_));
  const size_t context = buckets_.ContextFor(batch_->positions());
  const DeviceStep launch = StepOf(tokens, buckets_.contexts()[context]);
  if (bucket.has_value()) {
    RETURN_IF_ERROR(device_.Launch(*graphs_[*bucket][context], *stream_));
  } else {
    RETURN_IF_ERROR(EnqueueTrunk(launch));
  }
  const int64_t sampled = static_cast<int64_t>(step.sampled.size());
  RETURN_IF_ERROR(head_->Enqueue(batch_->sampled_rows(), sampled, launch));
  RETURN_IF_ERROR(logits_->Enqueue(step.sample_rows, launch));
  if (tap_) RETURN_IF_ERROR(logits_->EnqueueWhole(sampled, launch));
  RETURN_IF_ERROR(
      device_.Copy(poisoned_.data(), device_poisoned_, static_cast<size_t>(count), *stream_));
  if (step.reads_hidden) {
    RETURN_IF_ERROR(device_.Copy(hidden_.data(), head_->input(),
                                 static_cast<size_t>(count * head_->hidden()) * sizeof(float),
                                 *stream_));
  }
  RETURN_IF_ERROR(profile_.BeginOp(trunk_.size() + 1, *stream_));
  return device_.Record(*event_, *stream_);
}

absl::Status DeviceExecutor::Collect(StepState& step, absl::FunctionRef<void()> meanwhile) {
  return Blame(CollectFromDevice(step, meanwhile));
}

absl::Status DeviceExecutor::CollectFromDevice(StepState& step,
                                               absl::FunctionRef<void()> meanwhile) {
  RETURN_IF_ERROR(collective_->Await(*event_, meanwhile));
  RETURN_IF_ERROR(profile_.EndDevice());
  std::copy_n(poisoned_.data(), step.count(), step.poisoned.data());
  for (size_t i = 0; tap_ && i < step.sampled.size(); ++i) {
    const size_t row = static_cast<size_t>(step.sampled[i]);
    Tap(step.sample_slots[i], static_cast<uint32_t>(step.positions[row]), static_cast<int64_t>(i));
  }
  RETURN_IF_ERROR(sample_->Run(step));
  profile_.EndSampling();
  return absl::OkStatus();
}

absl::Status DeviceExecutor::Compute(StepState& step, absl::Span<const ScoredToken> tokens) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  // Where these are among the scored ones, whose rows are on the device behind the sampled.
  const size_t at = static_cast<size_t>(tokens.data() - step.scored.data());
  const int64_t first = static_cast<int64_t>(step.sampled.size() + at);
  const DeviceStep launch = StepOf(step.count(), /*max_context=*/0);
  RETURN_IF_ERROR(head_->Enqueue(batch_->sampled_rows() + first, count, launch));
  RETURN_IF_ERROR(logits_->Enqueue(step.score_rows.subspan(at, tokens.size()), launch));
  if (tap_) RETURN_IF_ERROR(logits_->EnqueueWhole(count, launch));
  RETURN_IF_ERROR(Await());
  for (int64_t i = 0; tap_ && i < count; ++i) {
    const ScoredToken& token = tokens[static_cast<size_t>(i)];
    Tap(token.slot, token.position, i);
  }
  return absl::OkStatus();
}

void DeviceExecutor::Tap(uint32_t slot, uint32_t position, int64_t row) const {
  tap_(slot, position,
       absl::MakeConstSpan(logits_->Row(static_cast<size_t>(row)),
                           static_cast<size_t>(head_->vocab())));
}

absl::Status DeviceExecutor::EndEpoch(std::unique_ptr<Collective> collective) {
  // What was captured with the communicator goes before it.
  graphs_.clear();
  if (collective != nullptr && collective_ != nullptr) collective_->SetProgressWord(nullptr);
  collective_ = nullptr;
  prepared_ = false;
  if (collective != nullptr) ended_collective_ = std::move(collective);
  absl::Status ended = AwaitEnd(std::min(kSumPatience, end_patience_));
  if (IsDeviceLost(ended) && ended_collective_ != nullptr) {
    ended_collective_->Abort();  // with it ends a sum that waits for others
    ended = AwaitEnd(end_patience_);
  }
  // Memory that is still worked on, the communicator's too, cannot be given back: that would wait.
  if (IsDeviceLost(ended)) return WithContext(ended, "when an epoch ended: ");
  ended_collective_.reset();
  cache_ = DeviceCache();
  if (use_ != nullptr) use_->kv_cache_bytes = 0;
  return absl::OkStatus();  // another error was said when it came, or is of work that was cut off
}

std::vector<internal::KernelChoice> DeviceExecutor::Kernels() const {
  std::vector<std::pair<int, KernelChoice>> choices;
  for (size_t i = 0; i < trunk_.size(); ++i) {
    const NodeGroup& group = context_->groups()[i];
    for (int member = 0; member < group.count; ++member) {
      for (KernelChoice& choice : trunk_[i]->ChoicesOf(member))
        choices.emplace_back(group.first + member, std::move(choice));
    }
  }
  for (KernelChoice& choice : head_->Choices()) choices.emplace_back(head_node_, std::move(choice));
  return KernelReport(graph_, choices);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GraphExecutor>> MakeDeviceExecutor(
    const internal::RankPlan& plan, std::shared_ptr<const LoadedWeights> weights,
    const DeviceOptions& device, const StepRunner::Options& options) {
  CHECK(device.device != nullptr && weights != nullptr && weights->device != nullptr);
  if (options.numerics.activations() != internal::NumericsOptions::ACTIVATIONS_A16 &&
      options.numerics.activations() != internal::NumericsOptions::ACTIVATIONS_A8) {
    return absl::UnimplementedError(
        "numerics: on a device activations are fp16 with a power-of-two scale, which goes by the "
        "name of a16, or a8; f32 is the CPU's: start the coordinator with --activations=a16, or "
        "the workers with --device=cpu");
  }
  RETURN_IF_ERROR(CheckStepNumerics(plan, options.numerics));
  auto executor = std::make_unique<DeviceExecutor>(plan, std::move(weights), device, options);
  RETURN_IF_ERROR(executor->Bind(options, plan.world()));
  return std::unique_ptr<GraphExecutor>(std::move(executor));
}

absl::StatusOr<std::unique_ptr<StepRunner>> BindRunnerOnDevice(
    const internal::RankPlan& plan, std::shared_ptr<const LoadedWeights> weights,
    const DeviceOptions& device, const StepRunner::Options& options) {
  CHECK(options.pool != nullptr);
  ASSIGN_OR_RETURN(std::unique_ptr<GraphExecutor> executor,
                   MakeDeviceExecutor(plan, std::move(weights), device, options));
  return StepRunner::Over(plan, std::move(executor), options);
}

}  // namespace bitshard
