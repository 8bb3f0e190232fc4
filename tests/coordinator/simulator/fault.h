// What may go wrong with a worker, and when.
#pragma once

#include <cstdint>
#include <optional>

namespace bitshard::sim {

enum class FaultKind {
  kKill,       // the process dies and its connection closes; a new one starts later
  kVanish,     // the same, but nothing closes: machine or network are gone
  kFreeze,     // stopped, and goes on later as if nothing had been
  kSlow,       // its steps take much longer
  kHang,       // stands still in its next step, and lives on
  kReset,      // the connection breaks; the process dials again
  kCut,        // nothing comes through, in both directions; it all comes later
  kLeave,      // announces that it leaves, and does
  kBreak,      // its communicator breaks
  kFail,       // reports an error of its own
  kFatal,      // reports an error after which it cannot go on
  kNoRest,     // does not come to rest at the end of its next epoch
  kForget,     // comes to rest, but without its weights
  kLoadFails,  // cannot load, this once
  kBabble,     // says everything twice, and late
};
inline constexpr int kFaultKinds = 15;
const char* Name(FaultKind kind);

// What a worker is about to do.
enum class Phase { kRegister, kLoad, kJoin, kAllocate, kStep, kEnd };
inline constexpr int kPhases = 6;
const char* Name(Phase phase);

struct Fault {
  FaultKind kind = FaultKind::kKill;
  uint32_t worker = 0;
  // At that phase of this worker, not counting the first `skip` times; without one at `after_us`
  // from the group's first readiness.
  std::optional<Phase> phase;
  uint32_t skip = 0;
  int64_t after_us = 0;  // from the phase on
  int64_t lasts_us = 0;  // until the new process starts, the frozen one goes on, the link is whole
};

}  // namespace bitshard::sim
