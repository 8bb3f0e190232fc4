// Waits of tests that come to an end: what does not come in a time that only a hang takes ends the
// program and is named, in place of a TIMEOUT that says nothing.
#pragma once

#include <chrono>
#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "kernels/base/check.h"

namespace bitshard {

// Less than a small test has.
inline constexpr absl::Duration kAwaitPatience = absl::Seconds(40);

// Until `condition()`, which must stay true: looked at again and again.
template <typename Condition>
void AwaitTrue(const std::string& what, const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoSeconds(kAwaitPatience);
  while (!condition()) {
    CHECK(std::chrono::steady_clock::now() < end) << "it never came: " << what;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// As mutex->Await; `mutex` is held.
inline void AwaitOn(absl::Mutex* mutex, const absl::Condition& condition, const std::string& what) {
  CHECK(mutex->AwaitWithTimeout(condition, kAwaitPatience)) << "it never came: " << what;
}

inline void AwaitNotified(const absl::Notification& notification, const std::string& what,
                          absl::Duration patience = kAwaitPatience) {
  CHECK(notification.WaitForNotificationWithTimeout(patience)) << "it never came: " << what;
}

}  // namespace bitshard
