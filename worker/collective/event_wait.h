// How the step thread waits for a device: it looks again and again, so that it comes back when the
// work will never end.
#pragma once

#include <chrono>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

#include "kernels/base/status_macros.h"
#include "kernels/tensor/device.h"

namespace bitshard {

// Until the last Record of `event` has been passed, or `alive` is an error, which wins over all but
// a lost device: work that was cut off may end with errors of its own. A decode step takes
// milliseconds: naps (60 us each, of which 50 are the kernel's own slack) cost less than a
// hundredth of it, and the first look often suffices for the small operations.
inline absl::Status AwaitEvent(Device& device, DeviceEvent& event,
                               absl::FunctionRef<absl::Status()> alive) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kEager = std::chrono::microseconds(100);
  constexpr auto kNap = std::chrono::microseconds(10);
  const Clock::time_point begin = Clock::now();
  for (;;) {
    const absl::StatusOr<bool> done = device.Done(event);
    if (IsDeviceLost(done.status())) return done.status();
    RETURN_IF_ERROR(alive());
    RETURN_IF_ERROR(done.status());
    if (*done) return absl::OkStatus();
    if (Clock::now() - begin < kEager) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

}  // namespace bitshard
