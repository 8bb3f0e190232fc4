// The accelerator of a worker process, as main sees it: opened by --device, told of at
// registration, and the functions that the step thread needs of it.
//
// Made in main. Open, Describe: the main thread; Load, Bind, Join: the step thread; AddMemory: any.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/base/thread_pool.h"
#include "kernels/tensor/device.h"
#include "kernels/tensor/device_limits.h"
#include "proto/graph.pb.h"
#include "proto/worker.pb.h"
#include "worker/collective/collective.h"
#include "worker/collective/tell_ranks.h"
#include "worker/device/device_memory_use.h"
#include "worker/load/loader.h"
#include "worker/options.h"
#include "worker/step/step_runner.h"

namespace bitshard {

class WorkerDevice {
 public:
  // Null: the CPU, asked for or what auto falls back to. Else an error says why the device does not
  // serve and what to try.
  static absl::StatusOr<std::unique_ptr<WorkerDevice>> Open(const WorkerOptions& options);

  const DeviceFacts& facts() const { return device_->facts(); }

  // Device, architecture, memory, bandwidth, numerics, ops and collectives.
  void Describe(internal::Register& out) const;

  // Weights go to the device while they are read.
  absl::StatusOr<std::shared_ptr<const LoadedWeights>> Load(const internal::RankPlan& plan,
                                                            ThreadPool& pool,
                                                            const LoadProgressFn& progress);
  // `options` as for StepRunner::Bind; the budget is the device's.
  absl::StatusOr<std::unique_ptr<StepRunner>> Bind(const internal::RankPlan& plan,
                                                   std::shared_ptr<const LoadedWeights> weights,
                                                   StepRunner::Options options);
  absl::StatusOr<std::unique_ptr<Collective>> Join(const internal::JoinCommunicator& join, int rank,
                                                   int world, const TellRanksFn& tell,
                                                   const std::atomic<bool>& stop);

  // The cache and the buffers are on the device: their sizes, and what is free there.
  void AddMemory(internal::MemoryReport& report) const;

 private:
  absl::Status Explain(const DeviceMemoryNeed& need) const;

  WorkerDevice(std::unique_ptr<Device> device, uint64_t memory_bytes, const WorkerOptions& options)
      : device_(std::move(device)),
        memory_bytes_(memory_bytes),
        profile_ops_(options.profile_ops),
        local_ranks_(static_cast<int>(options.local_ranks)) {}

  const std::unique_ptr<Device> device_;
  const uint64_t memory_bytes_;  // that it may use
  const bool profile_ops_;
  const int local_ranks_;
  DeviceMemoryUse use_;
};

}  // namespace bitshard
