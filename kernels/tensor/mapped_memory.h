// Memory in mappings of its own, by what it is for, so that a report can say how much of the
// process each part has: `/proc/PID/smaps` lists them by address (and by name where the kernel has
// names for anonymous memory).
//
// The table of mappings is one a process, like the address space that it describes. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bitshard {

enum class MemoryPart { kWeights, kKvCache, kWorkspace };

// "weights", "kv_cache", "workspace".
const char* MemoryPartName(MemoryPart part);

struct MappedMemory {
  MemoryPart part = MemoryPart::kWorkspace;
  uintptr_t address = 0;
  size_t bytes = 0;  // whole pages
};

// Zeroed; the host's memory is taken when a page is first touched. A page without access lies on
// either side, so that neighbours do not become one mapping. Null when the system refuses, and for
// 0 bytes.
uint8_t* MapMemory(MemoryPart part, size_t bytes);
void UnmapMemory(uint8_t* memory);  // null is fine

// Takes the host's memory for the pages of [begin, begin + bytes) that have none yet; what they
// hold stays. Nobody writes there meanwhile.
void TouchPages(uint8_t* begin, size_t bytes);

// All that is mapped now, by address.
std::vector<MappedMemory> MappedMemories();

// One mapping that buffers are cut from, in order, never given back singly. Outlives them. Not
// thread-safe.
class MemoryArena {
 public:
  // Dies when the machine has no memory left: sizes from outside are checked against a budget
  // before.
  MemoryArena(MemoryPart part, size_t bytes);
  ~MemoryArena();
  MemoryArena(const MemoryArena&) = delete;
  MemoryArena& operator=(const MemoryArena&) = delete;

  // What `Allocate(bytes)` takes of an arena.
  static size_t Footprint(size_t bytes);
  // 64-byte aligned. REQUIRES: it fits.
  uint8_t* Allocate(size_t bytes);
  // Takes the host's memory for every page that nobody has touched yet.
  void Touch();

  size_t used() const { return used_; }

 private:
  uint8_t* const memory_;
  const size_t bytes_;
  size_t used_ = 0;
};

}  // namespace bitshard
