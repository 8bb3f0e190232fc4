// How much of a level the scheduler has at hand, besides the sequences that have never run.
#pragma once

#include <cstdint>

#include "coordinator/schedule/service_level.h"

namespace bitshard {

struct LevelLoad {
  ServiceLevel level;
  uint32_t running = 0;            // sequences
  uint64_t uncomputed_tokens = 0;  // that running ones were given and no plan computes yet
  uint32_t waiting_again = 0;      // sequences that have run before and lost their blocks
  uint64_t again_tokens = 0;       // that these know, all to be computed again
};

}  // namespace bitshard
