#include "kernels/base/metric_page.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "kernels/base/check.h"

namespace bitshard {
namespace {

constexpr int kServerThreads = 2;

prometheus::MetricType TypeOf(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return prometheus::MetricType::Counter;
    case MetricType::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricType::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

void FillHistogram(const MetricHistogram& histogram, prometheus::ClientMetric::Histogram& out) {
  uint64_t count = 0;
  for (size_t i = 0; i <= histogram.bounds().size(); ++i) {
    count += histogram.CountOf(i);
    const bool last = i == histogram.bounds().size();
    out.bucket.push_back(
        {count, last ? std::numeric_limits<double>::infinity() : histogram.bounds()[i]});
  }
  out.sample_count = count;
  out.sample_sum = histogram.sum();
}

}  // namespace

MetricHistogram::MetricHistogram(const std::vector<double>& bounds)
    : bounds_(bounds), counts_(new std::atomic<uint64_t>[bounds.size() + 1]()) {
  CHECK(std::is_sorted(bounds.begin(), bounds.end()));
}

void MetricHistogram::Observe(double value) {
  if (std::isnan(value)) return;
  const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<size_t>(at - bounds_.begin())].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

struct MetricPage::Impl final : prometheus::Collectable {
  struct Series {
    std::unique_ptr<MetricValue> value;
    std::unique_ptr<MetricHistogram> histogram;
  };
  struct Family {
    MetricDef def;
    std::map<std::vector<std::string>, Series> series;
  };

  Impl(std::vector<MetricDef> table, Labels common_labels) : common(std::move(common_labels)) {
    absl::MutexLock lock(&mu);
    for (MetricDef& def : table) {
      CHECK(by_name.emplace(def.name, families.size()).second) << def.name << " stands twice";
      families.push_back({std::move(def), {}});
    }
    for (Family& family : families) {
      for (const std::vector<std::string>& labels : SeriesFromStart(family.def))
        Find(family, labels);
    }
  }

  Family& Named(absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto at = by_name.find(std::string(name));
    CHECK(at != by_name.end()) << "no metric " << std::string(name) << " in the table";
    return families[at->second];
  }

  static Series& Find(Family& family, const std::vector<std::string>& labels) {
    const auto at = family.series.find(labels);
    if (at != family.series.end()) return at->second;
    const MetricDef& def = family.def;
    CHECK_EQ(labels.size(), def.labels.size());
    for (size_t i = 0; i < labels.size(); ++i) {
      const std::vector<std::string>& values = def.labels[i].values;
      CHECK(values.empty() || std::find(values.begin(), values.end(), labels[i]) != values.end())
          << def.name << " has no " << def.labels[i].name << "=" << labels[i];
    }
    Series& series = family.series[labels];
    if (def.type == MetricType::kHistogram) {
      series.histogram = std::make_unique<MetricHistogram>(def.buckets.bounds);
    } else {
      series.value = std::make_unique<MetricValue>();
    }
    return series;
  }

  // For the exposer, on its threads.
  std::vector<prometheus::MetricFamily> Collect() const override {
    {
      absl::MutexLock lock(&collect_mu);
      if (collect) collect();
    }
    std::vector<prometheus::MetricFamily> out;
    absl::MutexLock lock(&mu);
    out.reserve(families.size());
    for (const Family& family : families) {
      prometheus::MetricFamily& one = out.emplace_back();
      one.name = family.def.full_name();
      one.help = family.def.help;
      one.type = TypeOf(family.def.type);
      const bool of_process = one.name == family.def.name;
      for (const auto& [labels, series] : family.series) {
        prometheus::ClientMetric& metric = one.metric.emplace_back();
        if (!of_process) {
          for (const auto& [name, value] : common) metric.label.push_back({name, value});
        }
        for (size_t i = 0; i < labels.size(); ++i)
          metric.label.push_back({family.def.labels[i].name, labels[i]});
        if (family.def.type == MetricType::kHistogram) {
          FillHistogram(*series.histogram, metric.histogram);
        } else if (family.def.type == MetricType::kCounter) {
          metric.counter.value = series.value->Get();
        } else {
          metric.gauge.value = series.value->Get();
        }
      }
    }
    return out;
  }

  const Labels common;
  mutable absl::Mutex collect_mu;  // before mu; held while `collect` runs
  std::function<void()> collect ABSL_GUARDED_BY(collect_mu);
  mutable absl::Mutex mu;
  std::vector<Family> families ABSL_GUARDED_BY(mu);
  std::map<std::string, size_t> by_name ABSL_GUARDED_BY(mu);

  std::unique_ptr<prometheus::Exposer> exposer;
  int port = 0;
};

MetricPage::MetricPage(std::vector<MetricDef> table, Labels common)
    : impl_(std::make_shared<Impl>(std::move(table), std::move(common))) {}

MetricPage::~MetricPage() {
  impl_->exposer.reset();
  SetCollector(nullptr);
}

MetricValue* MetricPage::Value(absl::string_view name, const std::vector<std::string>& labels) {
  absl::MutexLock lock(&impl_->mu);
  MetricValue* const value = Impl::Find(impl_->Named(name), labels).value.get();
  CHECK(value != nullptr) << std::string(name) << " is a histogram";
  return value;
}

MetricHistogram* MetricPage::Histogram(absl::string_view name,
                                       const std::vector<std::string>& labels) {
  absl::MutexLock lock(&impl_->mu);
  MetricHistogram* const histogram = Impl::Find(impl_->Named(name), labels).histogram.get();
  CHECK(histogram != nullptr) << std::string(name) << " is no histogram";
  return histogram;
}

void MetricPage::SetInfo(absl::string_view name, const std::vector<std::string>& labels) {
  absl::MutexLock lock(&impl_->mu);
  Impl::Family& family = impl_->Named(name);
  if (family.series.size() != 1 || family.series.begin()->first != labels) family.series.clear();
  Impl::Find(family, labels).value->Set(1);
}

void MetricPage::SetCollector(std::function<void()> collect) {
  absl::MutexLock lock(&impl_->collect_mu);
  impl_->collect = std::move(collect);
}

absl::Status MetricPage::Serve(const std::string& host, int port) {
  const std::string address = absl::StrCat(host, ":", port);
  try {  // the library throws
    impl_->exposer = std::make_unique<prometheus::Exposer>(address, kServerThreads);
    impl_->exposer->RegisterCollectable(impl_);
    impl_->port = impl_->exposer->GetListeningPorts().at(0);
  } catch (const std::exception&) {  // what it says is about the library
    impl_->exposer.reset();
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics on ", address,
                     " (--metrics-port); is the port taken? Try another one (0 picks one)"));
  }
  return absl::OkStatus();
}

int MetricPage::port() const { return impl_->port; }

std::string MetricPage::Text() { return prometheus::TextSerializer().Serialize(impl_->Collect()); }

}  // namespace bitshard
