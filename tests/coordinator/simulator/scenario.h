// What a seed stands for: a group of workers and what goes wrong with them, the engine's settings,
// and the requests that come.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/engine/engine.h"
#include "tests/coordinator/simulator/engine_host.h"
#include "tests/coordinator/simulator/fault.h"
#include "tests/coordinator/simulator/fleet.h"

namespace bitshard::sim {

struct Arrival {
  int64_t at_us = 0;  // since the group was ready first
  GenerateRequest request;
  std::optional<int64_t> cancelled_after_us;
  bool by_name = false;           // cancelled as Abort does it
  int64_t deadline_after_us = 0;  // 0: none
};

struct Scenario {
  uint64_t seed = 0;
  const char* kind = "";
  EngineHost::Options engine;
  Fleet::Options fleet;
  std::vector<Arrival> arrivals;
  std::optional<int64_t> drain_at_us, drain_for_us;

  // One line a thing.
  std::string Describe() const;
};

// The same for a seed, always.
Scenario MakeScenario(uint64_t seed);

}  // namespace bitshard::sim
