#include "kernels/cuda/emu/checks.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/base/check.h"
#include "kernels/cuda/emu/arena.h"
#include "kernels/cuda/emu/count.h"
#include "kernels/cuda/emu/races.h"

namespace bitshard::emu {
namespace {

constinit bool checks_accesses = false;

// A map of one byte a byte of the arena, and a little room for accesses across its end.
uint8_t* DeviceStates() {
  static uint8_t* const states =
      static_cast<uint8_t*>(ReserveAddresses(Arena().bytes + 64, "the state of device memory"));
  return states;
}
uint8_t shared_states[kSharedArenaBytes + 64];

std::string Who() {
  return "thread " + std::to_string(running->linear) + " of block " +
         std::to_string(launch.block_number);
}

std::string What(AccessKind kind, int bytes) {
  return (kind == AccessKind::kRead ? " reads " : " writes ") + std::to_string(bytes) + " bytes ";
}

// False, and a finding: the bytes belong to nobody.
bool CheckBounds(const void* address, int bytes, AccessKind kind, bool shared, unsigned seen,
                 const void* pc) {
  if ((seen & (1u << kNobodys | 1u << kFreed)) == 0) return true;
  const bool freed = (seen & 1u << kFreed) != 0;
  const std::string where =
      shared ? "of shared memory outside every array" : "at " + DescribeDeviceAddress(address);
  ReportAt(freed ? FindingKind::kFreedMemory : FindingKind::kOutOfBounds, pc,
           Who() + What(kind, bytes) + where);
  return false;
}

void CheckAlignment(uintptr_t at, int bytes, AccessKind kind, const void* pc) {
  const bool power_of_two = (bytes & (bytes - 1)) == 0;
  if (!power_of_two || (at & static_cast<uintptr_t>(std::min(bytes, 16) - 1)) == 0) return;
  ReportAt(FindingKind::kMisaligned, pc,
           Who() + What(kind, bytes) + "at an address that is no multiple of it");
}

void CheckInitialized(uint8_t* states, int bytes, AccessKind kind, bool shared, unsigned seen,
                      const void* pc) {
  if (kind == AccessKind::kIssue) {
    std::memset(states, kCopyInFlight, static_cast<size_t>(bytes));
    return;
  }
  const char* const memory = shared ? "of shared memory" : "of global memory";
  const bool reads = kind != AccessKind::kWrite;
  if (reads && (seen & 1u << kUnwritten) != 0) {
    ReportAt(FindingKind::kUninitialized, pc,
             Who() + " reads " + std::to_string(bytes) + " bytes " + memory +
                 " of which some were never written");
  }
  if (reads && (seen & 1u << kCopyInFlight) != 0) {
    ReportAt(FindingKind::kInFlight, pc,
             Who() + " reads bytes of a cp.async that nobody has waited for");
  }
  if (kind != AccessKind::kRead) std::memset(states, kWritten, static_cast<size_t>(bytes));
}

}  // namespace

bool ChecksAccesses() { return checks_accesses; }
void EnableAccessChecks() { checks_accesses = true; }

void CheckRunningAccess(const void* address, int bytes, AccessKind kind, const void* pc) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address);
  const DeviceArena& arena = Arena();
  uintptr_t offset = at - reinterpret_cast<uintptr_t>(SharedArena());
  const bool shared = offset < kSharedArenaBytes;
  if (!shared) {
    offset = at - reinterpret_cast<uintptr_t>(arena.base);
    if (offset >= arena.bytes) return;  // the thread's own variables, parameters, constants
  }
  if (bytes <= 0) return;
  uint8_t* const states = shared ? shared_states + offset : DeviceStates() + offset;
  unsigned seen = 0;
  for (int i = 0; i < bytes; ++i) seen |= 1u << states[i];
  if (!CheckBounds(address, bytes, kind, shared, seen, pc)) return;
  CheckAlignment(at, bytes, kind, pc);
  CheckInitialized(states, bytes, kind, shared, seen, pc);
  CheckRaces(shared, offset, bytes, kind, pc);
  if (kind != AccessKind::kIssue && launch.options.counters)
    CountAccess(shared, kind != AccessKind::kRead, offset, bytes, pc);
}

void SharedArrayStarts(size_t offset, size_t bytes) {
  if (checks_accesses) std::memset(shared_states + offset, kUnwritten, bytes);
}

void SharedArraysEnd(size_t end) {
  if (checks_accesses) std::memset(shared_states, kNobodys, end);
}

void MarkDevice(size_t offset, size_t bytes, ByteState state) {
  if (checks_accesses) std::memset(DeviceStates() + offset, state, bytes);
}

void MarkDeviceWrittenByHost(size_t offset, size_t bytes) {
  if (!checks_accesses) return;
  std::memset(DeviceStates() + offset, kWritten, bytes);
  ForgetRaces(offset, bytes);
}

void CopyDeviceMarks(size_t to, size_t from, size_t bytes) {
  if (!checks_accesses) return;
  std::memmove(DeviceStates() + to, DeviceStates() + from, bytes);
  ForgetRaces(to, bytes);
}

void ForgetDevice(size_t offset, size_t bytes) {
  if (checks_accesses) ForgetRaces(offset, bytes);
}

bool DeviceHasUnwritten(size_t offset, size_t bytes) {
  return checks_accesses && std::memchr(DeviceStates() + offset, kUnwritten, bytes) != nullptr;
}

}  // namespace bitshard::emu
