// How the step thread waits for a device, and for NCCL: it looks again and again, so that it comes
// back when the work will never end.
#pragma once

#include <chrono>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "kernels/base/monotonic_time.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/device.h"

namespace bitshard {

// Between two looks of one wait. Naps take 60 us each, of which 50 are the kernel's own slack: a
// hundredth or more of a decode step of a millisecond or two, less of a longer one.
class EventWait {
 public:
  void Pause() const {
    constexpr auto kEager = std::chrono::milliseconds(3);
    constexpr auto kNap = std::chrono::microseconds(10);
    if (Clock::now() - begin_ < kEager) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin_ = Clock::now();
};

// Until the last Record of `event` has been passed, or `alive` is an error, which wins over all but
// a lost device: work that was cut off may end with errors of its own. `meanwhile` is called before
// each look.
inline absl::Status AwaitEvent(Device& device, DeviceEvent& event,
                               absl::FunctionRef<absl::Status()> alive,
                               absl::FunctionRef<void()> meanwhile) {
  for (const EventWait wait;; wait.Pause()) {
    meanwhile();
    const absl::StatusOr<bool> done = device.Done(event);
    if (IsDeviceLost(done.status())) return done.status();
    RETURN_IF_ERROR(alive());
    RETURN_IF_ERROR(done.status());
    if (*done) return absl::OkStatus();
  }
}

// Whether the last Record of `event` is passed before `patience` is over.
inline absl::StatusOr<bool> PassedWithin(Device& device, DeviceEvent& event,
                                         absl::Duration patience) {
  const absl::Time deadline = MonotonicNow() + patience;
  for (const EventWait wait;; wait.Pause()) {
    const bool late = MonotonicNow() > deadline;
    ASSIGN_OR_RETURN(const bool passed, device.Done(event));
    if (passed || late) return passed;
  }
}

}  // namespace bitshard
