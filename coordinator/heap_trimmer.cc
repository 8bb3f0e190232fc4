#include "coordinator/heap_trimmer.h"

#include <algorithm>
#include <fstream>
#include <malloc.h>
#include <unistd.h>

#include "kernels/base/log.h"

namespace bitshard {

HeapTrimmer::HeapTrimmer(const Options& options)
    : options_(options), resident_low_(ResidentBytes()) {
  thread_ = std::thread([this] {
    while (true) {
      {
        absl::MutexLock lock(&mu_);
        if (mu_.AwaitWithTimeout(absl::Condition(&stop_), options_.interval)) return;
      }
      Look();
    }
  });
}

HeapTrimmer::~HeapTrimmer() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
}

bool HeapTrimmer::Look() {
  const uint64_t resident = ResidentBytes();
  resident_low_ = std::min(resident_low_, resident);
  if (resident < resident_low_ + options_.slack_bytes) return false;
  const uint64_t free = mallinfo2().fordblks;
  free_low_ = std::min(free_low_, free);
  resident_trimmed_ = std::min(resident_trimmed_, resident);
  const bool freed = free >= free_low_ + options_.slack_bytes;
  // Trimmed memory counts as free, also when it was used and freed again since.
  const bool used_again = free >= options_.slack_bytes && resident_trimmed_ < resident &&
                          resident - resident_trimmed_ >= options_.slack_bytes;
  if (!freed && !used_again) return false;
  malloc_trim(0);
  free_low_ = mallinfo2().fordblks;
  resident_trimmed_ = ResidentBytes();
  LogDebug("heap: event=trimmed before={} after={}", resident, resident_trimmed_);
  return true;
}

uint64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  uint64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace bitshard
