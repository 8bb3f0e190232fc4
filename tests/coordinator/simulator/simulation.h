// One simulation from its begin to its end: what a seed gives.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "coordinator/text/tokenizer.h"
#include "tests/coordinator/simulator/call.h"
#include "tests/coordinator/simulator/engine_host.h"
#include "tests/coordinator/simulator/fleet.h"
#include "tests/coordinator/simulator/plan_rules.h"
#include "tests/coordinator/simulator/scenario.h"
#include "tests/coordinator/simulator/world.h"

namespace bitshard::sim {

// What simulations must have met, or they show little. Sums over all of them.
struct Met {
  uint64_t schedules = 0, requests = 0, rejected = 0, tokens = 0, steps = 0;
  std::map<absl::StatusCode, uint64_t> ends;
  uint64_t preemptions = 0, stale_outputs = 0, cached_tokens = 0, evicted_blocks = 0;
  uint64_t lost_groups = 0, quarantined_blocks = 0, shared_quarantines = 0, bad_block_victims = 0;
  uint64_t share_checks = 0;

  void Add(const Met& other);
  std::string ToString() const;
};

struct Outcome {
  std::optional<std::string> violation;
  std::vector<std::string> trace;  // the last lines of it, when one was asked for
  std::string scenario;            // in words, with a violation
  Met met;
};

class Simulation {
 public:
  Simulation(uint64_t seed, const Tokenizer* tokenizer, const TraceOptions& trace);

  Outcome Run();

 private:
  void OnReady(const GroupInfo& info);
  void Send(const Arrival& arrival);
  void Drain();
  bool Over();
  void CheckEnd();
  // Of all sequences that may be there.
  const std::vector<SequenceId>& Ids();

  const Scenario scenario_;
  World world_;
  Circumstances circumstances_;
  PlanRules rules_;

  // The engine's plans pass by here.
  class Tap final : public StepExecutor {
   public:
    explicit Tap(Simulation* simulation) : simulation_(simulation) {}
    void Start(StepListener*) override {}
    void Submit(std::unique_ptr<internal::StepPlan> plan) override;
    void Stop() override {}

   private:
    Simulation* const simulation_;
  };

  Fleet fleet_;
  Tap tap_;
  EngineHost engine_;
  std::vector<std::shared_ptr<Call>> calls_;  // shared with the engine, as calls are
  std::vector<SequenceId> ids_;
  bool started_ = false;      // the group has been ready once
  size_t to_come_ = 0;        // arrivals
  int64_t last_news_us_ = 0;  // when the last request came
  uint64_t rejected_ = 0;
  uint64_t quarantined_ = 0;  // blocks, as last seen
  uint64_t most_quarantined_ = 0;
};

}  // namespace bitshard::sim
