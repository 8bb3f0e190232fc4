#include "tests/gpu/timing.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

absl::StatusOr<Timing> Repeat(Device& device, DeviceStream& stream, int launches, int repetitions,
                              const std::function<absl::Status()>& run) {
  std::vector<double> seconds;
  for (int i = 0; i <= repetitions; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(run());
    RETURN_IF_ERROR(device.Sync(stream));
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    if (i > 0) seconds.push_back(taken.count() / launches);  // the first one warms up
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return Timing{.seconds = median, .spread = (seconds.back() - seconds.front()) / median};
}

}  // namespace

absl::StatusOr<Timing> TimeGraph(Device& device, DeviceStream& stream, int launches,
                                 int repetitions, const std::function<absl::Status()>& enqueue) {
  RETURN_IF_ERROR(enqueue());  // what is set up at the first use is not captured
  RETURN_IF_ERROR(device.Sync(stream));
  RETURN_IF_ERROR(device.BeginCapture(stream));
  const absl::Status enqueued = enqueue();
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceGraph> graph, device.EndCapture(stream));
  RETURN_IF_ERROR(enqueued);
  return Repeat(device, stream, launches, repetitions,
                [&] { return device.Launch(*graph, stream); });
}

absl::StatusOr<Timing> TimeEnqueued(Device& device, DeviceStream& stream, int launches,
                                    int repetitions, const std::function<absl::Status()>& enqueue) {
  return Repeat(device, stream, launches, repetitions, enqueue);
}

absl::StatusOr<DeviceBuffer> UploadBytes(Device& device, const void* data, size_t bytes,
                                         DeviceStream& stream) {
  ASSIGN_OR_RETURN(DeviceBuffer there, device.Alloc(bytes));
  RETURN_IF_ERROR(device.Copy(there.data(), data, bytes, stream));
  RETURN_IF_ERROR(device.Sync(stream));
  return there;
}

}  // namespace bitshard
