// Whether the process's own loops come round: what liveness is about. A thread that serves a loop
// says when it takes up work and when it waits for some; anyone may ask for the longest round.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/time/time.h"

#include "kernels/base/monotonic_time.h"

namespace bitshard {

class LoopBeat {
 public:
  explicit LoopBeat(std::string name);
  ~LoopBeat();
  LoopBeat(const LoopBeat&) = delete;
  LoopBeat& operator=(const LoopBeat&) = delete;

  // The loop's thread, at each round; `since` is of MonotonicNow.
  void Works(absl::Time since = MonotonicNow()) {
    since_ns_.store(absl::ToUnixNanos(since), std::memory_order_relaxed);
  }
  void Waits() { since_ns_.store(kWaiting, std::memory_order_relaxed); }

  struct Round {
    std::string name;                           // of the loop; empty: none is at work
    absl::Duration age = absl::ZeroDuration();  // how long its round has lasted
  };
  // Of all loops of the process, the one whose round has lasted longest. Any thread; waits for no
  // loop.
  static Round Longest();

 private:
  static constexpr int64_t kWaiting = INT64_MAX;

  const std::string name_;
  std::atomic<int64_t> since_ns_{kWaiting};
};

}  // namespace bitshard
