// Time that nobody sets: for timeouts, ages and intervals. Has no relation to the calendar.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace bitshard {

// Of std::chrono::steady_clock; only differences mean anything.
inline absl::Time MonotonicNow() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace bitshard
