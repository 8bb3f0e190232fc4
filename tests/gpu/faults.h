// Kernels with a planted fault each, which a checker that works must report.
#pragma once

#include <cstdint>

namespace bitshard {

enum class Fault : uint8_t {
  kNone,           // must not be reported
  kOutOfBounds,    // one word past the end of global memory
  kRace,           // shared memory read without the barrier
  kUninitialized,  // global memory read that nobody wrote
};

// `data`: kFaultWords words on the device, unwritten. Returns a CUDA error code, 0 for success.
inline constexpr int kFaultWords = 256;
int LaunchFault(Fault fault, uint32_t* data, void* stream);

}  // namespace bitshard
