// Where this process's memory is, from its own page tables: the mapped parts (kernels/tensor/
// mapped_memory.h) as /proc/self/smaps has them, and the whole.
#pragma once

#include "proto/worker.pb.h"

namespace bitshard {

// Reads /proc; some milliseconds. What the system does not tell is 0.
internal::MemoryReport MeasureMemory();

}  // namespace bitshard
