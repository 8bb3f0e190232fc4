// One snapshot of the engine, taken in one moment, so that the numbers agree with each other:
//   received = finished + rejected + waiting + running
//   blocks_total = blocks_free + blocks_cached + blocks_used + blocks_quarantined
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"

#include "coordinator/engine/outcome.h"
#include "coordinator/engine/wait_predictor.h"
#include "coordinator/schedule/level_load.h"

namespace bitshard {

struct EngineStats {
  enum class GroupState { kForming, kReady, kLost };
  GroupState group = GroupState::kForming;
  uint64_t term = 0, epoch = 0, steps = 0;
  uint64_t epoch_steps = 0;  // of `steps`, those of this epoch
  // Requests; one runs when a choice of it does.
  uint32_t running = 0, waiting = 0;
  // Their choices: in steps, in the queue, and those that have ended before others of theirs.
  uint32_t running_choices = 0, waiting_choices = 0, ended_choices = 0;
  uint32_t blocks_total = 0, blocks_free = 0, blocks_used = 0, blocks_quarantined = 0;
  uint64_t received = 0, finished = 0, rejected = 0, tokens = 0;
  // When a step last ended or moved on, or now when the engine has nothing to do. While a plan is
  // out and no rank moves, and while the engine's thread makes no plans, it stands still.
  absl::Time last_progress;

  uint64_t waiting_tokens = 0;  // prompt tokens of the waiting requests
  uint64_t preemptions = 0;
  // Outputs dropped by the commit rule; normal around cancels and preemptions.
  uint64_t stale_outputs = 0;
  // The longest prompt + max_tokens that the KV pool can hold; 0 until a group is ready.
  uint64_t max_request_tokens = 0;
  // When the longest waiting request was received.
  absl::Time oldest_waiting = absl::InfiniteFuture();
  // Of the waiting ones: held back by a rule (fairness, the ITL bound) though there is room.
  uint32_t waiting_deferred = 0;
  // How long a request that came now would wait for its first step, as admission predicts it: of
  // one token, priority 0, from a tenant without other requests.
  absl::Duration predicted_wait;
  // What that rests on: what was measured; prompt tokens of running requests that are not computed
  // yet; places for running requests; whether the KV cache had no room for the next one.
  ServiceRates rates;
  uint64_t uncomputed_tokens = 0;
  uint32_t places = 0;
  bool no_room = false;
  bool next_is_batch = false;  // with no_room: and it pushes nobody out
  // The levels at which something runs or waits again, in the order of service.
  std::vector<LevelLoad> level_loads;
  RecentRate prompt_rate, output_rate;  // prompt tokens computed, tokens generated
  RecentRate request_rate;              // accepted requests that ended

  // Prefix cache. Blocks that nobody runs on and that can be used again; tokens that were looked up
  // (those of prompts) and found; blocks thrown out for others.
  uint32_t blocks_cached = 0;
  uint64_t prefix_query_tokens = 0, prefix_hit_tokens = 0, prefix_evicted_blocks = 0;

  // `finished` and `rejected`, by reason.
  RequestLedger ledger;
};

}  // namespace bitshard
