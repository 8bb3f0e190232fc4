// Counting, as launches run. Included by the emulator's own sources; under LaunchLock().
#pragma once

#include <cstddef>

#include "kernels/cuda/emu/core.h"

namespace bitshard::emu {

void CountLaunch();
void CountBarrier();
// The lanes of `warp` have met: their accesses until now are matched with each other.
void CountMeeting(int warp, Collective collective);
void EndBlockCounts();
// An access of the running thread. `offset` counts from the start of the shared or device arena.
void CountAccess(bool shared, bool write, size_t offset, int bytes, const void* pc);

}  // namespace bitshard::emu
