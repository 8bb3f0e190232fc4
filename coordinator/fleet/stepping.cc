// Plans out, results in, heartbeats both ways: what happens while an epoch runs.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "coordinator/fleet/group.h"
#include "kernels/base/check.h"

namespace bitshard {

void Group::SubmitPlan(std::unique_ptr<internal::StepPlan> plan, absl::Time now) {
  // The engine learns of a loss a moment after it: what it sent meanwhile belongs to nobody.
  if (state_ != State::kReady || plan->term() != term_ || plan->epoch() != epoch_) return;
  CHECK_EQ(plan->step(), last_step_ + 1) << "the engine skipped a step";
  last_step_ = plan->step();
  outstanding_.push_back({.step = last_step_, .submitted = now});
  internal::CoordinatorMessage message;
  message.set_allocated_step_plan(plan.release());
  SendToRanks(std::move(message));
}

void Group::OnResult(Member& member, std::unique_ptr<internal::StepResult> result, absl::Time now) {
  if (state_ != State::kReady || result->term() != term_ || result->epoch() != epoch_)
    return;  // of an ended epoch
  if (member.rank != 0u || result->rank() != 0) {
    Unexpected(member, absl::StrCat("a result in the name of rank ", result->rank()), now);
    return;
  }
  if (result->step() <= member.acked_step) return;  // a duplicate
  if (result->step() != member.acked_step + 1 || result->step() > last_step_) {
    Unexpected(member,
               absl::StrCat("a result of step ", result->step(), " after that of step ",
                            member.acked_step),
               now);
    return;
  }
  member.acked_step = result->step();
  member.moved_at = now;
  CHECK_EQ(outstanding_.front().step, result->step());
  outstanding_.pop_front();
  if (result->step() >= 16) failed_attempts_ = 0;
  output_->OnStepDone(std::move(result));
}

void Group::OnHeartbeat(Member& member, const internal::Heartbeat& heartbeat, absl::Time now) {
  if (heartbeat.epoch() != epoch_) return;
  if (heartbeat.step() != member.step || heartbeat.op() != member.op ||
      heartbeat.busy() != member.busy) {
    member.moved_at = now;
    if (state_ == State::kReady && member.has_rank()) output_->OnStepMoved();
  }
  member.step = heartbeat.step();
  member.op = heartbeat.op();
  member.busy = heartbeat.busy();
  if (member.rank == 0u) return;
  // Only rank 0 sends results; of the others this is what tells how far they are.
  const uint64_t finished = member.busy && member.step > 0 ? member.step - 1 : member.step;
  member.acked_step = std::max(member.acked_step, std::min(finished, last_step_));
}

void Group::Heartbeats(absl::Time now) {
  if (now - last_heartbeat_ < options_.heartbeat_interval) return;
  last_heartbeat_ = now;
  std::vector<ConnectionId> to;
  for (const auto& [connection, member] : members_) {
    if (member.phase != Member::Phase::kConnected) to.push_back(connection);
  }
  if (to.empty()) return;
  internal::CoordinatorMessage message;
  message.mutable_heartbeat()->set_term(term_);
  message.mutable_heartbeat()->set_epoch(epoch_);
  message.mutable_heartbeat()->set_step(last_step_);
  output_->Send(to, message);
}

void Group::Tick(absl::Time now) {
  // When this process itself was stopped, the workers' words of that time are still on their way.
  const absl::Duration gap = now - last_tick_;
  if (last_tick_ != absl::InfinitePast() && gap > options_.silence_timeout / 3) {
    for (auto& [connection, member] : members_) {
      member.last_heard = std::min(now, member.last_heard + gap);
      member.moved_at = std::min(now, member.moved_at + gap);
    }
  }
  last_tick_ = now;
  Heartbeats(now);
  CheckSilence(now);
  CheckPartial(now);
  if (blame_deadline_ && now >= *blame_deadline_) EndEpoch(absl::Status(blame_status_), now);
  CheckPhaseTimeouts(now);
  CheckStall(now);
  TryForm(now);
}

}  // namespace bitshard
