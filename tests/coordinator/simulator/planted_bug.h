// Bugs that planted_bugs.py puts into a copy of the scheduler's sources, each behind a switch, for
// planted_bugs_test.cc alone.
#pragma once

namespace bitshard::sim {

enum class PlantedBug {
  kNone,
  kKnownTooEarly,         // a block is in the prefix cache before the steps that fill it are sent
  kWholePromptCached,     // a hit may cover all of a prompt: nothing is left to compute
  kLateOutputsCount,      // outputs in flight count for whoever holds their slot now
  kLostWhenPreempted,     // who is preempted while an output is in flight waits nowhere
  kOldPlansStay,          // plans in flight outlive their epoch
  kOutputsCostNothing,    // rows that sample are not counted against the step's budget
  kSaltForgotten,         // the prefix cache does not tell callers and salts apart
  kSharersGoOn,           // who shares a block that is set aside goes on
  kFirstIsPreempted,      // who comes first in the order of service makes room
  kFirstComeFirstServed,  // tenants' accounts are kept, and not looked at
  kPlansStayOut,          // the engine still waits for results of an epoch that is over
  kLossNotTold            // the fleet does not tell of a group that breaks at once
};

// Set by the test, before anything runs.
inline PlantedBug planted_bug = PlantedBug::kNone;
inline bool Planted(PlantedBug bug) { return planted_bug == bug; }

}  // namespace bitshard::sim
