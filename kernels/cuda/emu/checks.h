// The state of every byte of device and shared memory, and the checks of a kernel's accesses
// against it. Included by the emulator's own sources. Does something in check builds only; all
// under LaunchLock().
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/emu/state.h"

namespace bitshard::emu {

enum class AccessKind : uint8_t {
  kRead,
  kWrite,
  kAtomic,
  kIssue,  // a cp.async begins to write
};

enum ByteState : uint8_t {
  kNobodys = 0,
  kUnwritten = 1,
  kCopyInFlight = 2,
  kWritten = 3,
  kFreed = 4,
};

// The running thread's access, made at instruction `pc`.
void CheckRunningAccess(const void* address, int bytes, AccessKind kind, const void* pc);
inline void CheckAccess(const void* address, int bytes, AccessKind kind, const void* pc) {
  if (launch.checking) CheckRunningAccess(address, bytes, kind, pc);
}

// Of the shared arena's bytes, as arrays come and go.
void SharedArrayStarts(size_t offset, size_t bytes);
void SharedArraysEnd(size_t end);

// Of the device's bytes. Offsets count from the arena's start.
void MarkDevice(size_t offset, size_t bytes, ByteState state);
// The host wrote these bytes: no kernel did.
void MarkDeviceWrittenByHost(size_t offset, size_t bytes);
void CopyDeviceMarks(size_t to, size_t from, size_t bytes);
// Forgets what kernels did to freed memory.
void ForgetDevice(size_t offset, size_t bytes);
// Whether a copy to the host would read bytes never written.
bool DeviceHasUnwritten(size_t offset, size_t bytes);

// hooks.cc, before the first allocation and launch.
void EnableAccessChecks();

}  // namespace bitshard::emu
