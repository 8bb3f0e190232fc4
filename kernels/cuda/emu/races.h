// Races: two accesses to the same bytes by different threads, at least one of them a write, and
// nothing that orders them. Included by the emulator's own sources; check builds only.
//
// What orders:
//   - of one block: a barrier between them; of one warp also a __syncwarp. A shuffle does not.
//   - of two blocks of a launch: a release by the first (GridRelease, then an atomic by the same
//   thread)
//     that covers the access, and GridAcquire by the second. A release covers what lies before a
//     barrier before the releasing thread's fence, and what lies before a fence of its own thread
//     that a barrier separates from the atomic.
//   - launches do not race: the stream orders them.
// Remembered are the last write and two reads; byte-wide accesses to global memory are not judged,
// the record there is of 2 bytes.
#pragma once

#include <cstddef>

#include "kernels/cuda/emu/checks.h"

namespace bitshard::emu {

void CheckRaces(bool shared, size_t offset, int bytes, AccessKind kind, const void* pc);
// Kernels have not touched these bytes of the device.
void ForgetRaces(size_t offset, size_t bytes);
// Forgets the releases of the launch before.
void StartRaces();

}  // namespace bitshard::emu
