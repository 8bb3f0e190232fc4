// The workers as the engine sees them: something that runs step plans in order. The fleet
// implements it over gRPC; tests implement it with ranks as threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"

#include "proto/plan.pb.h"

namespace bitshard {

// What a group of ready workers can do. Fixed within an epoch.
struct GroupInfo {
  uint64_t term = 0;
  uint64_t epoch = 0;
  uint32_t world = 0;
  uint32_t cache_blocks = 0;  // of the poorest rank
  uint32_t block_tokens = 16;
  uint32_t max_slots = 0;
  uint32_t max_step_tokens = 0;
};

// Called on executor threads; implementations hand over to the engine's inbox and return at once.
class StepListener {
 public:
  virtual ~StepListener() = default;
  virtual void OnGroupReady(const GroupInfo& info) = 0;
  // Rank 0's result: the ranks met in the step, so the others have come as far.
  virtual void OnStepDone(std::unique_ptr<internal::StepResult> result) = 0;
  // A rank is further in its step than it was: a long step is no hung one. As often as ranks tell.
  virtual void OnStepMoved() {}
  // The epoch is over: no more results of it follow. `why` names the rank and the cause.
  virtual void OnGroupLost(uint64_t term, uint64_t epoch, const absl::Status& why) = 0;
};

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // Begins to form a group; events go to `listener`, which outlives the executor's Stop.
  virtual void Start(StepListener* listener) = 0;
  // Hands the plan to all ranks. Never blocks; a lost group is reported through OnGroupLost.
  virtual void Submit(std::unique_ptr<internal::StepPlan> plan) = 0;
  // No event is delivered after it returns.
  virtual void Stop() = 0;
};

}  // namespace bitshard
