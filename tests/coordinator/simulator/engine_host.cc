#include "tests/coordinator/simulator/engine_host.h"

#include <utility>

#include "coordinator/engine/error_reason.h"

namespace bitshard::sim {

EngineHost::EngineHost(const Options& options, const Tokenizer* tokenizer, StepExecutor* executor,
                       World* world, Hooks hooks)
    : options_(options),
      world_(world),
      hooks_(std::move(hooks)),
      metrics_(world),
      admission_(options.engine),
      core_(options.engine, tokenizer, executor, &metrics_, this, this) {}

absl::StatusOr<SequenceId> EngineHost::Submit(GenerateRequest request,
                                              std::shared_ptr<RequestSink> sink) {
  const absl::Time now = world_->events.time();
  request.received = now;
  absl::StatusOr<SequenceId> id = admission_.Admit(request, now);
  if (id.ok()) Post(EngineCore::Accepted{*id, std::move(request), std::move(sink)});
  return id;
}

void EngineHost::Abort(const std::string& caller, const std::string& request_id) {
  const std::optional<SequenceId> id = admission_.Find(caller, request_id);
  if (id.has_value()) Post(Cancellation{*id});
}

void EngineHost::Post(Message message) {
  inbox_.push_back(std::move(message));
  if (std::exchange(turn_planned_, true)) return;
  int64_t delay = world_->dice.Between(0, options_.turn_delay_us);
  if (world_->dice.Below(128) == 0) delay *= 64;  // somebody else has the processor
  world_->events.After(delay, [this] { Turn(); });
}

void EngineHost::Turn() {
  turn_planned_ = false;
  std::vector<Message> batch = std::exchange(inbox_, {});
  const absl::Time now = world_->events.time();
  for (Message& message : batch) {
    std::visit([this, now](auto& m) { Handle(m, now); }, message);
    if (world_->violation().has_value()) return;
    shared_quarantines_ += core_.scheduler().blocks().condemned() > 0;
  }
  hooks_.before_plans();
  core_.Advance(now);
  Publish();
  if (world_->violation().has_value()) return;
  Check();

  const absl::Time wakeup = core_.NextWakeup();
  const int64_t at = wakeup == absl::InfiniteFuture()
                         ? INT64_MAX
                         : EventQueue::UsOf(wakeup + absl::Microseconds(1));
  if (at == wake_at_) return;
  wake_at_ = at;
  ++wake_number_;
  if (at != INT64_MAX) world_->events.At(at, [this, number = wake_number_] { Wake(number); });
}

void EngineHost::Wake(uint64_t number) {
  if (number != wake_number_) return;
  wake_at_ = INT64_MAX;
  if (!turn_planned_) Turn();
}

void EngineHost::Handle(GroupInfo& m, absl::Time now) {
  core_.GroupReady(m, now);
  hooks_.on_ready(m);
}

void EngineHost::Handle(EndOfAll&, absl::Time now) {
  core_.EndAll(DrainingError(), EndReason::kShutdown, now);
}

void EngineHost::OnStarted(SequenceId id, uint32_t choice) {
  admission_.Started(id, choice, world_->events.time());
}

void EngineHost::BeforeEnd(SequenceId id, EndReason reason, absl::StatusCode code) {
  if (core_.scheduler().Contains(id))
    world_->Fail(absl::StrCat("request ", id, " ends while the scheduler still has it"));
  admission_.End(id, reason, code);
  Publish();
}

void EngineHost::Run(MaskJob job) {
  ++masks_out_;
  world_->events.After(world_->dice.Between(0, options_.mask_delay_us),
                       [this, job = std::move(job)] {
                         --masks_out_;
                         Post(RunMaskJob(job));
                       });
}

void EngineHost::Publish() {
  core_.FillStats(&scheduling_);
  admission_.SetScheduling(scheduling_, core_.taken_prompt_tokens());
  admission_.set_group_cause(core_.group_cause());
}

void EngineHost::Check() {
  const Scheduler& scheduler = core_.scheduler();
  if (scheduler.has_epoch() && core_.live() > 0 && scheduler.steps_in_flight() == 0 &&
      masks_out_ == 0 && inbox_.empty()) {
    world_->Fail(absl::StrCat(core_.live(), " requests stand still: ", scheduler.running(),
                              " sequences run, ", scheduler.waiting(), " wait, nothing is out"));
    return;
  }
  if (++turns_ % options_.check_every != 0) return;
  if (const absl::Status status = scheduler.CheckInvariants(); !status.ok()) {
    world_->Fail(absl::StrCat("scheduler: ", status.message()));
    return;
  }
  const EngineStats stats = admission_.Stats();
  if (stats.received != stats.finished + stats.rejected + stats.waiting + stats.running)
    world_->Fail(absl::StrCat("received ", stats.received, " requests, but finished ",
                              stats.finished, " + rejected ", stats.rejected, " + waiting ",
                              stats.waiting, " + running ", stats.running));
  if (stats.blocks_total !=
      stats.blocks_free + stats.blocks_cached + stats.blocks_used + stats.blocks_quarantined)
    world_->Fail("the blocks' states do not add up");
  if (stats.finished != metrics_.ended())
    world_->Fail(absl::StrCat(stats.finished, " requests finished, ", metrics_.ended(), " ended"));
}

void EngineHost::Metrics::Ended(const RequestSummary& s) {
  ++ended_;
  if (s.frontend + s.queue + s.prefill + s.decode + s.recompute + s.paused != s.e2e)
    world_->Fail(
        absl::StrCat("the phases of a request do not add up to ", absl::FormatDuration(s.e2e)));
}

}  // namespace bitshard::sim
