// futex(2) on words in shared memory: sleep while a word has a value, wake who sleeps on it.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace bitshard {

// Sleeps while `word` == `seen`, at most `nanoseconds` (< 1 s). Returns early for any reason:
// callers look again.
inline void FutexWait(std::atomic<uint32_t>& word, uint32_t seen, long nanoseconds) {
  const timespec limit{0, nanoseconds};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

inline void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace bitshard
