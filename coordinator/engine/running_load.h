// What runs and is in the way of a request that waits, by the order in which the scheduler serves
// levels (coordinator/schedule/README.md).
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/types/span.h"

#include "coordinator/engine/wait_predictor.h"
#include "coordinator/schedule/level_load.h"

namespace bitshard {

struct RunningLoad {
  absl::Span<const LevelLoad> levels;
  uint64_t uncomputed_tokens = 0;  // of running ones, all levels together
  uint32_t running = 0, places = 0;
  bool no_room = false;        // for the one that is next
  bool next_is_batch = false;  // with no_room: that is a batch request

  // Fills all of it but what waits. Prompts under way pause for those of earlier levels, and batch
  // requests give way to others.
  void Fill(const ServiceLevel& level, QueueAhead* ahead) const {
    ahead->uncomputed_tokens = uncomputed_tokens;
    ahead->running = running;
    ahead->places = places;
    ahead->blocked = no_room && (level.batch || !next_is_batch);
    for (const LevelLoad& load : levels) {
      if (load.level <= level) continue;
      ahead->uncomputed_tokens -= std::min(ahead->uncomputed_tokens, load.uncomputed_tokens);
      if (load.level.batch && !level.batch)
        ahead->running -= std::min(ahead->running, load.running);
    }
  }
};

}  // namespace bitshard
