// Times of work on a device, by its own events: graph replays, and work as it is enqueued. Each is
// repeated to some milliseconds, on a device that is warm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/tensor/device.h"

namespace bitshard {

struct Timing {
  double seconds = 0;  // of one piece of work: the median of the repetitions
  double spread = 0;   // (largest - smallest) / median
};

// Captures `enqueue`, which enqueues `launches` equal pieces of work, as often as a repetition
// wants it, and times the replays.
absl::StatusOr<Timing> TimeGraph(Device& device, DeviceStream& stream, int launches,
                                 int repetitions, const std::function<absl::Status()>& enqueue);

// The same without a graph, for what cannot be captured.
absl::StatusOr<Timing> TimeEnqueued(Device& device, DeviceStream& stream, int launches,
                                    int repetitions, const std::function<absl::Status()>& enqueue);

// New memory of the device with these bytes, once they are there.
absl::StatusOr<DeviceBuffer> UploadBytes(Device& device, const void* data, size_t bytes,
                                         DeviceStream& stream);

}  // namespace bitshard
