// The graph of a rank on an accelerator. Owned by the runner, used by the step thread.
//
// A step is: its arrays in one copy; everything up to the last norm as one captured graph (of the
// smallest bucket of tokens and context that holds it; long prefills without a graph); logits of
// the rows that want them and what the sampler must know of them (device_logits.h); one wait. The
// sampler decides on the host. Graphs are captured when an epoch starts, for its communicator;
// after that nothing is allocated or captured.
//
// Waits go through the communicator (DeviceCollective::Await), so that a peer that is gone ends
// them. A word in the host's memory says how far the device has come.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "kernels/tensor/device.h"
#include "proto/graph.pb.h"
#include "worker/device/device_memory_use.h"
#include "worker/load/loader.h"
#include "worker/step/graph_executor.h"
#include "worker/step/step_runner.h"

namespace bitshard {

struct DeviceOptions {
  Device* device = nullptr;        // outlives the executor
  DeviceMemoryUse* use = nullptr;  // likewise; null: nobody asks
  bool use_graphs = true;          // false: every step launch by launch; the bits are the same
  bool profile_ops = false;        // likewise, and the profile is by ops (device_profile.h)
  bool scan_logits = true;         // false: all logits go to the host; the results are the same
  // For what an epoch leaves on the device to end after an abort. A step is over in seconds at the
  // worst, sums that were cut off at once; what takes longer never ends. The coordinator lets this
  // worker go earlier, so that the reason is in its log alone.
  absl::Duration end_patience = absl::Seconds(20);
};

// `weights` were loaded through a sink of the device. From `options`: numerics, isa and pool (of
// the sampler), max_workspace_bytes (of the device), logits_tap, profile. UNIMPLEMENTED names what
// the device cannot do: a node kind, a format, an activation mode.
absl::StatusOr<std::unique_ptr<GraphExecutor>> MakeDeviceExecutor(
    const internal::RankPlan& plan, std::shared_ptr<const LoadedWeights> weights,
    const DeviceOptions& device, const StepRunner::Options& options);

// A StepRunner over it.
absl::StatusOr<std::unique_ptr<StepRunner>> BindRunnerOnDevice(
    const internal::RankPlan& plan, std::shared_ptr<const LoadedWeights> weights,
    const DeviceOptions& device, const StepRunner::Options& options);

}  // namespace bitshard
