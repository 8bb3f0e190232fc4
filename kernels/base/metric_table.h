// What a process measures, as data: one table from which its series are made and zeroed
// (metric_page.h) and its documentation is written.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace bitshard {

enum class MetricType { kCounter, kGauge, kHistogram };

struct MetricLabel {
  std::string name;
  // All there can be: no other value is ever taken. Empty: see `bound`.
  std::vector<std::string> values;
  // For the documentation: what the values are, and what bounds their number.
  std::string bound = {};
};

struct MetricBuckets {
  std::string name;            // "TTFT"
  std::vector<double> bounds;  // upper bounds, ascending; +Inf is not among them
};

struct MetricDef {
  std::string name;  // without the prefix, which all have but those that begin with "process_"
  MetricType type = MetricType::kCounter;
  std::string unit;  // "seconds", "tokens", "requests"; "" for none
  std::vector<MetricLabel> labels = {};
  MetricBuckets buckets = {};  // of a histogram
  std::string help;            // one line
  std::string when;            // when it is measured and from what to what
  // Label values of the series that are there from the start, at 0. Empty: all combinations of the
  // labels' values; a label without values has none.
  std::vector<std::vector<std::string>> from_start = {};

  std::string full_name() const {
    return name.rfind("process_", 0) == 0 ? name : "bitshard_" + name;
  }
};

// 1-2-5 x 10^k up to the first that is at least `most`.
std::vector<double> OneTwoFive(double most);

// Series that MetricPage makes at the start.
std::vector<std::vector<std::string>> SeriesFromStart(const MetricDef& def);

// Markdown: a table of the metrics, then one of their buckets.
std::string DescribeMetrics(const std::vector<MetricDef>& table);

}  // namespace bitshard
