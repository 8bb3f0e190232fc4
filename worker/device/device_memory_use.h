// What a worker has of its device's memory, and what of the host's it has pinned for the device's
// copies, for the memory report. Written by the step thread, read by any.
#pragma once

#include <atomic>
#include <cstdint>

namespace bitshard {

struct DeviceMemoryUse {
  std::atomic<uint64_t> weight_bytes{0};
  std::atomic<uint64_t> workspace_bytes{0};
  std::atomic<uint64_t> kv_cache_bytes{0};
  std::atomic<uint64_t> pinned_bytes{0};  // of the host
};

}  // namespace bitshard
