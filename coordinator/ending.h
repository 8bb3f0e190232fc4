// Why and when the program ends.
//
// Thread-safe: signals, operators and the fleet begin it, each on a thread of its own; main follows
// it. The first reason is the program's; later ones count only when they bring the end forward, as
// SIGTERM does to an operator's long drain.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace bitshard {

class Ending {
 public:
  struct Reason {
    absl::Status status;  // OK: orderly
    std::string what;
    absl::Duration drain;  // how long streams may go on
  };

  void Begin(Reason reason) ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for the first reason.
  Reason Await() ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `drain` for the first reason and, while that goes on, for each that comes to bring the
  // end forward, each call on a thread of its own. Returns when all have returned, and expects that
  // one that returns lets the others return too. REQUIRES: Await has returned; called once.
  void Drain(const std::function<void(const Reason&)>& drain) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Waits for the next reason; none once drained_.
  std::optional<Reason> Next() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  absl::Time end_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();  // of the last reason that counts
  std::deque<Reason> reasons_ ABSL_GUARDED_BY(mu_);               // that Next has not given yet
  bool drained_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace bitshard
