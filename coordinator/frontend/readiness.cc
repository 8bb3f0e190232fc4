#include "coordinator/frontend/readiness.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "coordinator/loop_beat.h"
#include "kernels/base/log.h"

namespace bitshard {
namespace {

constexpr absl::Duration kPeriod = absl::Milliseconds(100);
// Rounds of the process's loops take milliseconds.
constexpr absl::Duration kHungAfter = absl::Seconds(30);

}  // namespace

Readiness JudgeReadiness(const EngineStats& stats, bool draining, absl::Duration stall_timeout,
                         absl::Time now) {
  if (draining) return {false, "the service drains"};
  switch (stats.group) {
    case EngineStats::GroupState::kForming:
      return {false, "the group of workers is forming"};
    case EngineStats::GroupState::kLost:
      return {false, "a worker was lost"};
    case EngineStats::GroupState::kReady:
      break;
  }
  if (now - stats.last_progress > stall_timeout) {
    return {false, absl::StrCat("no step has moved for ",
                                absl::FormatDuration(absl::Trunc(now - stats.last_progress,
                                                                 absl::Milliseconds(100))))};
  }
  return {true, ""};
}

ReadinessMonitor::ReadinessMonitor(const Engine* engine, HealthState* health,
                                   absl::Duration stall_timeout)
    : engine_(engine), health_(health), stall_timeout_(stall_timeout), thread_([this] { Loop(); }) {
  health_->SetRefresh([this] { Look(); });
}

ReadinessMonitor::~ReadinessMonitor() {
  health_->SetRefresh(nullptr);
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void ReadinessMonitor::SetDraining() {
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
  }
  Look();
}

bool ReadinessMonitor::draining() const {
  absl::MutexLock lock(&mu_);
  return draining_;
}

Readiness ReadinessMonitor::Now() const {
  return JudgeReadiness(engine_->Stats(), draining(), stall_timeout_, absl::Now());
}

void ReadinessMonitor::Look() {
  absl::MutexLock lock(&look_mu_);
  const Readiness readiness = Now();
  if (health_->Get("readiness") != readiness.ready) {
    LogInfo("health: event=readiness ready={} reason=\"{}\"", readiness.ready, readiness.reason);
  }
  health_->SetReady(readiness.ready);
  const LoopBeat::Round round = LoopBeat::Longest();
  const bool alive = round.age < kHungAfter;
  if (health_->Get("liveness") != alive) {
    LogError("health: event=liveness alive={} longest_round={} of=\"{}\"", alive,
             absl::FormatDuration(round.age), round.name);
  }
  health_->SetAlive(alive);
  if (readiness.ready) health_->SetStarted(true);
}

void ReadinessMonitor::Loop() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      mu_.AwaitWithTimeout(absl::Condition(&stopping_), kPeriod);
      if (stopping_) return;
    }
    Look();
  }
}

}  // namespace bitshard
