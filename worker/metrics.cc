#include "worker/metrics.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

namespace bitshard {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;

prometheus::Histogram::BucketBoundaries StepBuckets() {
  return {.001, .002, .004, .006, .008, .01, .015, .02, .025, .03, .04, .05, .075, .1,
          .15,  .2,   .3,   .4,   .5,   .75, 1,    2.5, 5,    7.5, 10,  20,  40,   80};
}

}  // namespace

struct WorkerMetrics::Impl {
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  prometheus::Family<prometheus::Gauge>& build_info =
      BuildGauge()
          .Name("bitshard_worker_build_info")
          .Help("1; labels tell the version and the widest kernel ISA chosen")
          .Register(*registry);
  prometheus::Family<prometheus::Histogram>& step_seconds =
      BuildHistogram()
          .Name("bitshard_worker_step_seconds")
          .Help("Time that a rank spent in a step, waiting for other ranks included")
          .Register(*registry);
  prometheus::Family<prometheus::Counter>& outputs =
      BuildCounter()
          .Name("bitshard_worker_output_tokens_total")
          .Help("Tokens sampled by this rank's group while the rank was here")
          .Register(*registry);
  prometheus::Family<prometheus::Gauge>& memory_bytes =
      BuildGauge()
          .Name("bitshard_memory_bytes")
          .Help("Memory by kind: weights (packed, padding included), kv (the cache's full size)")
          .Register(*registry);
  prometheus::Family<prometheus::Counter>& read_bytes =
      BuildCounter()
          .Name("bitshard_model_read_bytes_total")
          .Help("Bytes read from checkpoint files")
          .Register(*registry);
  prometheus::Family<prometheus::Gauge>& load_seconds =
      BuildGauge()
          .Name("bitshard_weight_load_seconds")
          .Help("Time that the last load of this rank's weights took")
          .Register(*registry);
  prometheus::Family<prometheus::Counter>& load_errors =
      BuildCounter()
          .Name("bitshard_weight_load_errors_total")
          .Help("Loads that failed, by status code")
          .Register(*registry);
  std::unique_ptr<prometheus::Exposer> exposer;  // last: stops serving first
};

WorkerMetrics::WorkerMetrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WorkerMetrics::~WorkerMetrics() = default;

absl::StatusOr<std::unique_ptr<WorkerMetrics>> WorkerMetrics::Serve(const std::string& address,
                                                                    const std::string& version,
                                                                    const std::string& isa) {
  auto impl = std::make_unique<Impl>();
  impl->build_info.Add({{"version", version}, {"isa", isa}}).Set(1);
  try {  // the library throws
    impl->exposer = std::make_unique<prometheus::Exposer>(address);
    impl->exposer->RegisterCollectable(impl->registry);
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("metrics page at ", address, ": ", e.what(),
                                               "; choose another --metrics-port, or 0 for none"));
  }
  return std::unique_ptr<WorkerMetrics>(new WorkerMetrics(std::move(impl)));
}

void WorkerMetrics::OnLoaded(uint32_t rank, uint64_t arena_bytes, uint64_t read_bytes,
                             absl::Duration took) {
  const std::string label = absl::StrCat(rank);
  impl_->memory_bytes.Add({{"rank", label}, {"kind", "weights"}})
      .Set(static_cast<double>(arena_bytes));
  impl_->read_bytes.Add({{"rank", label}}).Increment(static_cast<double>(read_bytes));
  impl_->load_seconds.Add({{"rank", label}}).Set(absl::ToDoubleSeconds(took));
}

void WorkerMetrics::OnLoadFailed(const absl::Status& status) {
  impl_->load_errors.Add({{"reason", absl::StatusCodeToString(status.code())}}).Increment();
}

void WorkerMetrics::OnCacheAllocated(uint32_t rank, uint64_t bytes) {
  impl_->memory_bytes.Add({{"rank", absl::StrCat(rank)}, {"kind", "kv"}})
      .Set(static_cast<double>(bytes));
}

void WorkerMetrics::OnStep(uint32_t rank, absl::Duration took, uint64_t outputs) {
  const std::string label = absl::StrCat(rank);
  impl_->step_seconds.Add({{"rank", label}}, StepBuckets()).Observe(absl::ToDoubleSeconds(took));
  impl_->outputs.Add({{"rank", label}}).Increment(static_cast<double>(outputs));
}

}  // namespace bitshard
