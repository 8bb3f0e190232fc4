// Counts for one accepted request exactly one of two things: when its first token was handed to the
// transport, or that it ended without one.
//
// Lives in the call, which lives until gRPC, the engine and the writer have let go of it. Any
// thread.
#pragma once

#include <atomic>

#include "absl/time/time.h"

#include "coordinator/engine/engine_metrics.h"

namespace bitshard {

class FirstTokenCount {
 public:
  explicit FirstTokenCount(EngineMetrics* metrics) : metrics_(metrics) {}
  ~FirstTokenCount() {
    if (accepted_ && !handed_) metrics_->EndedWithoutToken();
  }
  FirstTokenCount(const FirstTokenCount&) = delete;
  FirstTokenCount& operator=(const FirstTokenCount&) = delete;

  void Accepted() { accepted_ = true; }
  // Tokens are handed over; only the first call counts.
  void Handed(absl::Duration since_received) {
    if (!handed_.exchange(true)) metrics_->FirstToken(since_received);
  }

 private:
  EngineMetrics* const metrics_;
  std::atomic<bool> accepted_{false}, handed_{false};
};

}  // namespace bitshard
