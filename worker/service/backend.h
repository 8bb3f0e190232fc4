// What the step thread needs from below, as functions: main fills in the real ones, tests of the
// service their own.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/graph.pb.h"
#include "proto/worker.pb.h"
#include "worker/collective/collective.h"
#include "worker/collective/tell_ranks.h"
#include "worker/load/loader.h"
#include "worker/step/step_runner.h"

namespace bitshard {

struct WorkerBackend {
  std::function<absl::StatusOr<std::shared_ptr<const LoadedWeights>>(
      const internal::RankPlan& plan, const LoadProgressFn& progress)>
      load;
  std::function<absl::StatusOr<std::unique_ptr<StepRunner>>(
      const internal::RankPlan& plan, std::shared_ptr<const LoadedWeights> weights,
      const internal::NumericsOptions& numerics)>
      bind;
  // `tell` carries what the ranks must know of each other first. Soon over once another thread sets
  // `stop`.
  std::function<absl::StatusOr<std::unique_ptr<Collective>>(
      const internal::JoinCommunicator& join, int rank, int world, const TellRanksFn& tell,
      const std::atomic<bool>& stop)>
      join;
  std::function<absl::Status(Collective& collective)> self_test;
  // On the step thread and, at the same time, on a thread of its own; may be empty.
  std::function<internal::MemoryReport()> measure_memory;

  // After a failure with which the device is lost: the process cannot go on. On the step thread;
  // may be empty.
  std::function<void()> on_device_lost;

  // What the runners that `bind` makes write to, for the metrics; null: nobody asked.
  const StepProfile* profile = nullptr;

  // A bind to any fallback kernel is an error, whatever the coordinator says.
  bool require_fast_kernels = false;
  // For the kernel report.
  std::vector<internal::ProbeFigure> probe;
  // When the process started, and what main has measured of its bring-up: process_start_us and
  // kernel_probe_us.
  std::chrono::steady_clock::time_point process_start = std::chrono::steady_clock::now();
  internal::BringUp bring_up;
};

}  // namespace bitshard
