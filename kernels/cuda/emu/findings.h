// What is wrong with the kernels that ran. Findings are kept until ResetFindings; equal ones (same
// kind and place) are kept once but counted. Any thread may call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace bitshard::emu {

enum class FindingKind : uint8_t {
  // In every build.
  kDivergentBarrier,     // __syncthreads not reached by all threads at one place
  kDivergentCollective,  // lanes of a warp meet in different calls, or with different masks
  kWrongMask,            // a lane is not in the mask that it gives
  kInactiveLane,         // a shuffle reads a lane outside the mask
  kDeadlock,             // nobody can go on
  kAsyncNotWaited,       // a thread exits before its cp.async copies have landed
  kSharedLimit,          // more shared memory than a block can have
  kBadArgument,          // an instruction's operand out of its range
  kTrap,                 // __trap()
  kBadCopy,              // a host copy outside live allocations
  // In check builds.
  kOutOfBounds,    // global: no allocation; shared: no array
  kFreedMemory,    // global memory after Free
  kMisaligned,     // an access not aligned to its size
  kUninitialized,  // bytes never written are read, or copied to the host
  kInFlight,       // bytes of a cp.async that has not landed are read
  kRaceShared,     // two threads of a block, one writes, no barrier between
  kRaceGlobal,     // two threads of a launch, one writes, neither barrier nor release and acquire
  kEarlyAccess,    // LAUNCH_KERNEL_EARLY: before GridDependencyWait
};

std::string_view FindingName(FindingKind kind);

struct Finding {
  FindingKind kind;
  std::string kernel;  // as the launch names it
  std::string place;   // "file.cu:12", the line of the kernel; of two accesses, the later one
  std::string text;    // one line with the values
  uint64_t count;
};

std::vector<Finding> Findings();
// How many, with repetitions. 0: all is well.
uint64_t Errors();
void ResetFindings();
// One line a finding.
std::string FindingsText();

}  // namespace bitshard::emu
