// Readiness as the design wants it: steps make progress on every rank, and new requests are taken.
#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "coordinator/engine/engine.h"
#include "coordinator/frontend/health.h"

namespace bitshard {

struct Readiness {
  bool ready = false;
  std::string reason;  // why not, for people
};

Readiness JudgeReadiness(const EngineStats& stats, bool draining, absl::Duration stall_timeout,
                         absl::Time now);

// Looks ten times a second, and whenever somebody asks for the health, and tells the health state:
// of readiness, and of liveness by coordinator/loop_beat.h.
class ReadinessMonitor {
 public:
  // `engine` and `health` outlive the monitor.
  ReadinessMonitor(const Engine* engine, HealthState* health, absl::Duration stall_timeout);
  ~ReadinessMonitor();

  // Not ready from here on, when it returns.
  void SetDraining() ABSL_LOCKS_EXCLUDED(mu_);
  bool draining() const ABSL_LOCKS_EXCLUDED(mu_);
  Readiness Now() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Loop();
  void Look() ABSL_LOCKS_EXCLUDED(look_mu_);

  const Engine* const engine_;
  HealthState* const health_;
  const absl::Duration stall_timeout_;

  absl::Mutex look_mu_;  // one look at a time, so that an older one never has the last word
  mutable absl::Mutex mu_;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace bitshard
