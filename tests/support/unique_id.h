// Names for what all processes of a host share, as /dev/shm. A process id is none: tests run at the
// same time, each in a PID namespace of its own, where their ids are often the same.
#pragma once

#include <atomic>
#include <random>
#include <string>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace bitshard {

// "WHAT-..." of letters, digits and '-'; another one at each call, in a forked child too.
inline std::string UniqueId(const std::string& what) {
  static const std::string process = [] {
    std::random_device random;
    return absl::StrCat(absl::Hex(random(), absl::kZeroPad8), absl::Hex(random(), absl::kZeroPad8));
  }();
  static std::atomic<int> next{0};
  return absl::StrCat(what, "-", process, "-", getpid(), "-", next++);
}

}  // namespace bitshard
