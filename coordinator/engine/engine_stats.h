// One snapshot of the engine, taken in one moment, so that the numbers agree with each other:
//   received = finished + rejected + waiting + running
//   blocks_total = blocks_free + blocks_used + blocks_quarantined
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace bitshard {

struct EngineStats {
  enum class GroupState { kForming, kReady, kLost };
  GroupState group = GroupState::kForming;
  uint64_t term = 0, epoch = 0, steps = 0;
  uint32_t running = 0, waiting = 0;
  uint32_t blocks_total = 0, blocks_free = 0, blocks_used = 0, blocks_quarantined = 0;
  uint64_t received = 0, finished = 0, rejected = 0, tokens = 0;
  // When a step last ended, or now when the engine has nothing to do. While a plan is out and
  // nothing comes back, and while the engine's thread does not take its messages, it stands still.
  absl::Time last_progress;

  uint64_t waiting_tokens = 0;  // prompt tokens of the waiting requests
  uint64_t preemptions = 0;
  // Outputs dropped by the commit rule; normal around cancels and preemptions.
  uint64_t stale_outputs = 0;
  // The longest prompt + max_tokens that the KV pool can hold; 0 until a group is ready.
  uint64_t max_request_tokens = 0;
  // When the longest waiting request was received.
  absl::Time oldest_waiting = absl::InfiniteFuture();
};

}  // namespace bitshard
