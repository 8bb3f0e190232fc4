#include "tests/coordinator/simulator/fleet.h"

#include <algorithm>
#include <utility>

#include "tests/coordinator/simulator/short_status.h"

namespace bitshard::sim {
namespace {

constexpr int64_t kTick = 50 * kMillisecond;

}  // namespace

Fleet::Fleet(Options options, World* world)
    : world_(world),
      options_(std::move(options)),
      switchboard_(world),
      group_(options_.group, this) {
  for (const Worker::Options& worker : options_.workers)
    workers_.push_back(
        std::make_unique<Worker>(worker, world_, static_cast<WorkerPort*>(this), &switchboard_));
  for (const Fault& fault : options_.faults) {
    if (fault.phase.has_value()) waiting_faults_.push_back(fault);
  }
}

void Fleet::Start(StepListener* listener) {
  listener_ = listener;
  for (const auto& worker : workers_) worker->Start();
  Tick();
}

void Fleet::Tick() {
  group_.Tick(world_->events.time());
  world_->events.After(kTick, [this] { Tick(); });
}

void Fleet::StartFaults(int64_t drop_after_us) {
  drop_faults_at_ = world_->events.now() + drop_after_us;
  for (const Fault& fault : options_.faults) {
    if (!fault.phase.has_value())
      world_->events.After(fault.after_us, [this, fault] { Strike(fault); });
  }
}

void Fleet::AtPhase(Worker* worker, Phase phase) {
  for (Fault& fault : waiting_faults_) {
    if (fault.worker != worker->number() || fault.phase != phase) continue;
    if (fault.skip > 0) {
      --fault.skip;
      continue;
    }
    fault.phase.reset();
    if (world_->events.now() >= drop_faults_at_) continue;
    world_->events.After(fault.after_us, [this, fault] { Strike(fault); });
  }
  std::erase_if(waiting_faults_, [](const Fault& fault) { return !fault.phase.has_value(); });
}

void Fleet::Strike(const Fault& fault) {
  disturbed_until_ = std::max(disturbed_until_, world_->events.now() + fault.lasts_us);
  workers_.at(fault.worker)->Suffer(fault);
}

void Fleet::Submit(std::unique_ptr<internal::StepPlan> plan) {
  world_->Note([&] { return absl::StrCat("plan ", plan->ShortDebugString()); });
  // A loss that the engine has not heard of yet: the group drops the plan.
  if (ready_ && plan->epoch() == epoch_ && ++plans_ - results_ > options_.most_plans_out)
    world_->Fail(absl::StrCat(plans_ - results_, " plans are out, at most ",
                              options_.most_plans_out, " may be"));
  group_.SubmitPlan(std::move(plan), world_->events.time());
}

// --- what the group does

void Fleet::Send(absl::Span<const ConnectionId> to, const internal::CoordinatorMessage& message) {
  const bool plan = message.has_step_plan();
  const ToWorker shared = std::make_shared<internal::CoordinatorMessage>(message);
  for (const ConnectionId connection : to) {
    auto found = wires_.find(connection);
    if (found == wires_.end() || !found->second.open) {
      world_->Fail(absl::StrCat("a message to connection ", connection, ", which is closed"));
      return;
    }
    Wire& wire = found->second;
    if (message.has_end_epoch()) wire.told_of_end = true;
    if (message.has_join_communicator()) wire.told_of_end = false;
    if (plan && wire.told_of_end) {
      world_->Fail(absl::StrCat("step ", message.step_plan().step(), " goes to worker ",
                                wire.worker->number(), " after the end of its epoch"));
      return;
    }
    world_->events.At(ArrivalDown(wire), [worker = wire.worker, connection, shared] {
      worker->OnMessage(connection, shared);
    });
  }
}

void Fleet::Close(ConnectionId connection, const absl::Status& why) {
  auto found = wires_.find(connection);
  if (found == wires_.end() || !found->second.open) return;
  world_->Note([&] {
    return absl::StrCat("worker ", found->second.worker->number(), " is let go: ", Short(why));
  });
  found->second.open = false;
  world_->events.At(ArrivalDown(found->second), [worker = found->second.worker, connection] {
    worker->OnStreamEnd(connection);
  });
}

void Fleet::OnGroupReady(const GroupInfo& info) {
  world_->Note([&] {
    return absl::StrCat("group ready, term ", info.term, " epoch ", info.epoch, ", ",
                        info.cache_blocks, " blocks");
  });
  if (std::exchange(ready_, true)) world_->Fail("ready again without a loss");
  if (info.epoch <= epoch_) world_->Fail(absl::StrCat("epoch ", info.epoch, " after ", epoch_));
  epoch_ = info.epoch;
  plans_ = results_ = 0;
  listener_->OnGroupReady(info);
}

void Fleet::OnStepDone(std::unique_ptr<internal::StepResult> result) {
  ++results_;
  if (!ready_ || result->epoch() != epoch_ || result->step() != results_) {
    world_->Fail(absl::StrCat("result of step ", result->step(), " of epoch ", result->epoch(),
                              " as number ", results_, " of epoch ", epoch_));
  }
  world_->Note([&] { return absl::StrCat("result ", result->ShortDebugString()); });
  listener_->OnStepDone(std::move(result));
}

void Fleet::OnGroupLost(uint64_t term, uint64_t epoch, const absl::Status& why) {
  world_->Note([&] { return absl::StrCat("group lost: ", Short(why)); });
  if (!std::exchange(ready_, false) || epoch != epoch_)
    world_->Fail(absl::StrCat("epoch ", epoch, " is lost, but ", epoch_, " was ready last"));
  ++losses_;
  listener_->OnGroupLost(term, epoch, why);
}

void Fleet::OnHopeless(const absl::Status& why) {
  world_->Fail(absl::StrCat("the fleet gives up: ", Short(why)));
}

// --- connections

int64_t Fleet::Latency() {
  const int64_t usual = world_->dice.Between(options_.latency_us / 4, options_.latency_us);
  return world_->dice.Below(64) == 0 ? usual * 32 : usual;
}

int64_t Fleet::ArrivalUp(Wire& wire) {
  return wire.up_us = std::max(wire.up_us, world_->events.now() + Latency());
}

int64_t Fleet::ArrivalDown(Wire& wire) {
  return wire.down_us = std::max(wire.down_us, world_->events.now() + Latency());
}

ConnectionId Fleet::Dial(Worker* worker) {
  const ConnectionId connection = ++last_connection_;
  Wire& wire = wires_[connection];
  wire.worker = worker;
  world_->events.At(ArrivalUp(wire),
                    [this, connection] { group_.Connected(connection, world_->events.time()); });
  return connection;
}

void Fleet::FromWorker(ConnectionId connection, std::unique_ptr<internal::WorkerMessage> message) {
  world_->events.At(
      ArrivalUp(wires_.at(connection)),
      [this, connection, kept = std::make_shared<internal::WorkerMessage>(std::move(*message))] {
        if (!wires_.at(connection).open) return;
        group_.Received(connection, std::make_unique<internal::WorkerMessage>(std::move(*kept)),
                        world_->events.time());
      });
}

void Fleet::HangUp(ConnectionId connection, bool noticed) {
  if (!noticed) return;
  world_->events.At(ArrivalUp(wires_.at(connection)), [this, connection] {
    Wire& wire = wires_.at(connection);
    if (!std::exchange(wire.open, false)) return;
    group_.Disconnected(connection, world_->events.time());
  });
}

void Fleet::Hold(ConnectionId connection, int64_t us) {
  Wire& wire = wires_.at(connection);
  wire.up_us = std::max(wire.up_us, world_->events.now() + us);
  wire.down_us = std::max(wire.down_us, world_->events.now() + us);
}

}  // namespace bitshard::sim
