// Where this process's memory is, from its own page tables: the mapped parts (kernels/tensor/
// mapped_memory.h) as /proc/self/smaps has them, and the whole.
#pragma once

#include "proto/worker.pb.h"

namespace bitshard {

// Reads /proc: measured 4 us a mapping, and 22 ms a gigabyte in pages of 4 KiB, which is seconds
// for a large model; in huge pages next to nothing. Thread-safe. What the system does not tell is
// 0.
internal::MemoryReport MeasureMemory();

}  // namespace bitshard
