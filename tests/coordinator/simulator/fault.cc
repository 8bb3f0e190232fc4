#include "tests/coordinator/simulator/fault.h"

namespace bitshard::sim {

const char* Name(FaultKind kind) {
  constexpr const char* kNames[] = {"kill",  "vanish", "freeze", "slow",   "hang",
                                    "reset", "cut",    "leave",  "break",  "fail",
                                    "fatal", "norest", "forget", "noload", "babble"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kFaultKinds);
  return kNames[static_cast<int>(kind)];
}

const char* Name(Phase phase) {
  constexpr const char* kNames[] = {"register", "load", "join", "allocate", "step", "end"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == kPhases);
  return kNames[static_cast<int>(phase)];
}

}  // namespace bitshard::sim
