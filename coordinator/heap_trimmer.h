// Gives freed memory back to the kernel. Large requests come in as many small pieces, and the
// allocator keeps what lies between two that still live: after some texts of 8 MB a coordinator of
// 40 MiB stayed at 300.
//
// Looks every few seconds, on a thread of its own, and trims only when much has been freed since:
// looking and trimming lock the allocator's arenas one after the other, some milliseconds after a
// flood of such requests, never while the process has not grown.
#pragma once

#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace bitshard {

class HeapTrimmer {
 public:
  struct Options {
    absl::Duration interval = absl::Seconds(5);
    uint64_t slack_bytes = 32 << 20;  // growth of the process, and freed memory, that is left
  };

  explicit HeapTrimmer(const Options& options);
  ~HeapTrimmer();

  // One look, as the thread does it: whether it trimmed. For the thread and for tests.
  bool Look();

 private:
  const Options options_;
  uint64_t resident_low_;  // the least that was seen
  uint64_t free_low_ = 0;  // the allocator's free memory: after the last trim, or the least since
  uint64_t resident_trimmed_ = UINT64_MAX;  // likewise, of the process

  absl::Mutex mu_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Memory of the host that this process has.
uint64_t ResidentBytes();

}  // namespace bitshard
