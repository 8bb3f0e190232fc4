// What this machine grants the process: memory, read bandwidth, who it is. Asked once, at start.
#pragma once

#include <cstdint>
#include <string>

namespace bitshard {

// Memory that could be used now without swapping: the least of the kernel's MemAvailable and what
// our cgroups (v2 or v1) leave.
uint64_t AvailableMemoryBytes();

// Bytes a second that one thread reads from memory, measured for about 50 ms; 0 when it could not
// be measured.
uint64_t MeasureReadBandwidth();

// Processes with equal names can share memory: host name, boot and /dev/shm.
std::string SharedMemoryHost();

// 16 random hex digits.
std::string RandomInstance();

}  // namespace bitshard
