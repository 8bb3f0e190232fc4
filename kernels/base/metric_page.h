// A process's Prometheus page, made from a table. The only file that knows the library is
// metric_page.cc; this header may be included on hot paths.
//
// Counting is lock-free and costs some nanoseconds: callers look their series up once and keep the
// pointer, which stays valid as long as the page. All methods are thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "kernels/base/metric_table.h"

namespace bitshard {

// One series of a counter or a gauge.
class MetricValue {
 public:
  void Add(uint64_t n = 1) { count_.fetch_add(n, std::memory_order_relaxed); }
  // The part that is not counted here but known from elsewhere.
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  double Get() const {
    return static_cast<double>(count_.load(std::memory_order_relaxed)) +
           value_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<uint64_t> count_{0};
  std::atomic<double> value_{0};
};

// One series of a histogram.
class MetricHistogram {
 public:
  explicit MetricHistogram(const std::vector<double>& bounds);
  // A NaN is not counted.
  void Observe(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  // Of bucket i alone, not of those below; the last, i == bounds().size(), is that of +Inf.
  uint64_t CountOf(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::vector<double> bounds_;
  const std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
};

class MetricPage {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // `common`: labels of every series but the process_ ones.
  MetricPage(std::vector<MetricDef> table, Labels common);
  ~MetricPage();  // stops serving first

  // The series of the metric `name` (without prefix) with these label values in the table's order;
  // it is made when it is not there yet. REQUIRES: the table has it, with these values where it
  // lists them.
  MetricValue* Value(absl::string_view name, const std::vector<std::string>& labels = {});
  MetricHistogram* Histogram(absl::string_view name, const std::vector<std::string>& labels = {});
  // Only this series of a metric whose labels are the information; pointers to others go stale.
  void SetInfo(absl::string_view name, const std::vector<std::string>& labels);

  // Runs at the beginning of every scrape, one at a time, to set gauges. Nullptr takes it away;
  // when this returns no earlier one is running. Not from inside `collect`.
  void SetCollector(std::function<void()> collect);

  // Serves http://host:port/metrics; port 0 = any. UNAVAILABLE when the address cannot be bound.
  absl::Status Serve(const std::string& host, int port);
  int port() const;  // 0 before Serve
  // The page as a scrape would get it.
  std::string Text();

 private:
  struct Impl;
  const std::shared_ptr<Impl> impl_;  // shared with the exposer, which holds it weakly
};

// What the page says of the process itself: processor time, memory, descriptors, threads.
std::vector<MetricDef> ProcessMetricTable();
// For the collector of a page whose table has these.
void SetProcessMetrics(MetricPage& page);

}  // namespace bitshard
