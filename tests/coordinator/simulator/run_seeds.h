// Many simulations, one after the other, and a report of the first that breaks a promise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tests/coordinator/simulator/simulation.h"

namespace bitshard::sim {

struct Finding {
  uint64_t seed = 0;
  std::string violation;
  std::string report;  // the scenario, the end of the trace, how to see it again
};

// Nothing of what the coordinator logs is shown: a hundred thousand lost groups are not worth a
// line each.
void KeepQuiet();

// Seeds first, first + 1, ... `count` of them, until one breaks a promise. A CHECK that fails on
// the way ends the process and tells the seed.
std::optional<Finding> RunSeeds(uint64_t first, uint64_t count, Met* met);

// One seed, each line of the trace to stdout.
Outcome Replay(uint64_t seed);

}  // namespace bitshard::sim
