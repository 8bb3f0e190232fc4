#include "tests/gpu/timing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

// Before anything is timed: clocks rise with load, memory's within tens of milliseconds.
constexpr double kWarmUpSeconds = 20e-3;
// Of one repetition: what a launch costs the host, and an event the stream, disappears in it.
constexpr double kRepetitionSeconds = 3e-3;
constexpr int kMostLaunches = 2048;

// Runs until the device is warm; how often one repetition runs it.
absl::StatusOr<int> WarmUp(Device& device, DeviceStream& stream, int launches,
                           const std::function<absl::Status()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::duration<double> taken{};
  int runs = 0;
  for (; taken.count() < kWarmUpSeconds; ++runs) {
    RETURN_IF_ERROR(run());
    RETURN_IF_ERROR(device.Sync(stream));
    taken = std::chrono::steady_clock::now() - begin;
  }
  const int wanted = static_cast<int>(std::ceil(kRepetitionSeconds * runs / taken.count()));
  return std::clamp(wanted, 1, std::max(1, kMostLaunches / launches));
}

// `run` enqueues `pieces` pieces of work.
absl::StatusOr<Timing> Repeat(Device& device, DeviceStream& stream, int pieces, int repetitions,
                              const std::function<absl::Status()>& run) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceEvent> from, device.NewTimedEvent());
  ASSIGN_OR_RETURN(const std::unique_ptr<DeviceEvent> to, device.NewTimedEvent());
  std::vector<double> seconds;
  for (int i = 0; i <= repetitions; ++i) {
    RETURN_IF_ERROR(device.Record(*from, stream));
    RETURN_IF_ERROR(run());
    RETURN_IF_ERROR(device.Record(*to, stream));
    RETURN_IF_ERROR(device.Sync(stream));
    ASSIGN_OR_RETURN(const int64_t ns, device.ElapsedNs(*from, *to));
    // The first replay of a graph is not like the others.
    if (i > 0) seconds.push_back(static_cast<double>(std::max<int64_t>(ns, 1)) * 1e-9 / pieces);
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return Timing{.seconds = median, .spread = (seconds.back() - seconds.front()) / median};
}

}  // namespace

absl::StatusOr<Timing> TimeGraph(Device& device, DeviceStream& stream, int launches,
                                 int repetitions, const std::function<absl::Status()>& enqueue) {
  ASSIGN_OR_RETURN(const int rounds, WarmUp(device, stream, launches, enqueue));
  RETURN_IF_ERROR(device.BeginCapture(stream));
  absl::Status enqueued;
  for (int i = 0; i < rounds && enqueued.ok(); ++i) enqueued = enqueue();
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceGraph> graph, device.EndCapture(stream));
  RETURN_IF_ERROR(enqueued);
  return Repeat(device, stream, rounds * launches, repetitions,
                [&] { return device.Launch(*graph, stream); });
}

absl::StatusOr<Timing> TimeEnqueued(Device& device, DeviceStream& stream, int launches,
                                    int repetitions, const std::function<absl::Status()>& enqueue) {
  ASSIGN_OR_RETURN(const int rounds, WarmUp(device, stream, launches, enqueue));
  return Repeat(device, stream, rounds * launches, repetitions, [&]() -> absl::Status {
    for (int i = 0; i < rounds; ++i) RETURN_IF_ERROR(enqueue());
    return absl::OkStatus();
  });
}

absl::StatusOr<DeviceBuffer> UploadBytes(Device& device, const void* data, size_t bytes,
                                         DeviceStream& stream) {
  ASSIGN_OR_RETURN(DeviceBuffer there, device.Alloc(bytes));
  RETURN_IF_ERROR(device.Copy(there.data(), data, bytes, stream));
  RETURN_IF_ERROR(device.Sync(stream));
  return there;
}

}  // namespace bitshard
