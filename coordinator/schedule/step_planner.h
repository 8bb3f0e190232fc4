// Writes a step down as the delta that workers understand (proto/plan.proto).
//
// A sequence that enters a slot travels whole, with the blocks that the prefix cache holds of it
// and those for its first row; from then on a row carries only what is new. A sequence that leaves
// its slot is not mentioned: the next one in that slot replaces it.
#pragma once

#include <cstdint>
#include <memory>

#include "coordinator/schedule/scheduler.h"
#include "proto/plan.pb.h"

namespace bitshard {

struct StepStamp {
  uint64_t term = 0, epoch = 0, step = 0;
};

std::unique_ptr<internal::StepPlan> WriteStepPlan(const StepSchedule& schedule,
                                                  const StepStamp& stamp);

}  // namespace bitshard
