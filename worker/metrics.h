// The worker's own Prometheus page. What there is stands in the table of metrics.cc, from which
// docs/metrics.md is written.
//
// The events are the step thread's, OnMachine main's before it starts; the page is anybody's.
// Series with a rank begin when the rank is assigned, all of them at 0.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "kernels/base/metric_page.h"
#include "proto/worker.pb.h"
#include "worker/collective/timed.h"
#include "worker/load/loader.h"
#include "worker/step/step_runner.h"
#include "worker/step/step_work.h"

namespace bitshard {

class WorkerMetrics final : public CollectiveWatcher {
 public:
  struct Build {
    std::string version;
    std::string backend;  // "cpu", "cuda"
    std::string isa;      // of a GPU its architecture
  };
  // Serves http://host:port/metrics, port 0 = any; UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<WorkerMetrics>> Serve(const std::string& host, int port,
                                                              const Build& build);
  ~WorkerMetrics() override;
  int port() const { return page_.port(); }
  std::string Page() { return page_.Text(); }

  // What the machine can do, as measured at start.
  void OnMachine(uint64_t read_bytes_per_s, double flops_per_s);

  // The others are of this rank from now on.
  void OnAssigned(uint32_t rank);
  void OnLoaded(const LoadedWeights& weights, absl::Duration took);
  void OnLoadFailed(const absl::Status& status);
  // `kinds`: of the ops, as in StepProfile.
  void OnBound(const std::vector<internal::KernelChoice>& kernels, uint64_t workspace_bytes,
               const std::vector<std::string>& kinds);
  void OnCacheAllocated(uint64_t bytes);
  void OnBringUp(const internal::BringUp& times);

  // A step that had rows. Since the graph was bound, `op_ns`: time of each op, `launched_ahead`: as
  // in StepProgress. REQUIRES: OnBound.
  void OnStep(absl::Duration took, uint64_t outputs, const StepWork::Amount& work,
              const std::vector<int64_t>& op_ns, uint64_t launched_ahead);
  // An empty step, which only shows that the rank is alive.
  void OnIdleStep();
  void OnCollective(CollectiveOp op, uint64_t bytes, int64_t nanoseconds) override;

 private:
  struct RankSeries;
  explicit WorkerMetrics(const Build& build);

  MetricPage page_;
  const std::string collective_;      // what ranks meet over, as the label says it
  std::unique_ptr<RankSeries> rank_;  // of the rank that was assigned last; null before
};

std::vector<MetricDef> WorkerMetricTable();
// Of docs/metrics.md.
std::string WorkerMetricsDoc();

}  // namespace bitshard
