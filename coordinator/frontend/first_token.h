// Counts for each accepted request of a call exactly one of two things: when its first token was
// handed to the transport, or that it ended without one.
//
// Lives in the call, which lives until gRPC, the engine and the writer have let go of it. Any
// thread.
#pragma once

#include <atomic>
#include <cstddef>

#include "absl/time/time.h"

#include "coordinator/engine/engine_metrics.h"

namespace bitshard {

class FirstTokenCount {
 public:
  explicit FirstTokenCount(EngineMetrics* metrics) : metrics_(metrics) {}
  ~FirstTokenCount() {
    for (size_t i = handed_ ? 1 : 0; i < accepted_; ++i) metrics_->EndedWithoutToken();
  }
  FirstTokenCount(const FirstTokenCount&) = delete;
  FirstTokenCount& operator=(const FirstTokenCount&) = delete;

  void Accepted(size_t requests) { accepted_ = requests; }
  // Tokens are handed over, of a call of one request; only the first time counts.
  void Handed(absl::Duration since_received) {
    if (!handed_.exchange(true)) metrics_->FirstToken(since_received);
  }

 private:
  EngineMetrics* const metrics_;
  std::atomic<size_t> accepted_{0};
  std::atomic<bool> handed_{false};
};

}  // namespace bitshard
