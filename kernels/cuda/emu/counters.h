// What kernels did, counted over all launches since ResetCounters. Any thread may call.
//
// Sectors, waves and bytes are counted in check builds with Options::counters. The n-th execution
// of one instruction by the lanes of a warp, between two points where the warp meets, counts as one
// warp instruction. These are counts of addresses: no caches, no latency, no time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bitshard::emu {

struct AccessCounters {
  uint64_t warp_instructions = 0;
  uint64_t lanes = 0;
  // Global memory: sectors of 32 bytes. Shared memory: passes over the 32 banks (16-byte accesses
  // go in four phases of 8 lanes, 8-byte ones in two of 16).
  uint64_t done = 0;
  uint64_t ideal = 0;  // the fewest that these bytes need
  double Efficiency() const { return done == 0 ? 1.0 : static_cast<double>(ideal) / done; }
};

struct Counters {
  uint64_t launches = 0;
  uint64_t blocks = 0;
  uint64_t barriers = 0;  // of a block
  uint64_t shuffles = 0;  // of a warp; a WarpSum or WarpMax is five
  uint64_t mma = 0;       // of a warp
  AccessCounters global;
  AccessCounters global_writes;  // of these
  AccessCounters shared;
  uint64_t requested_bytes = 0;     // all sectors: what L1 serves
  uint64_t block_unique_bytes = 0;  // sectors a block touches, each once: with a perfect L1
  uint64_t unique_bytes = 0;        // sectors touched at all: the least that DRAM moves
};

struct PlaceCounters {
  std::string place;  // "file.cu:12"
  bool shared;
  bool write;
  int bytes;  // of one lane
  AccessCounters access;
};

Counters GetCounters();
// The instructions by place, those that cost most beyond the ideal first.
std::vector<PlaceCounters> CountersByPlace();
void ResetCounters();
std::string CountersText();

}  // namespace bitshard::emu
