#include "kernels/base/metric_table.h"

#include <cstdio>
#include <map>

namespace bitshard {
namespace {

const char* TypeName(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "unknown";
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

std::string LabelText(const MetricLabel& label) {
  std::string text = "`" + label.name + "`";
  if (!label.bound.empty()) return text + " (" + label.bound + ")";
  text += " = ";
  for (size_t i = 0; i < label.values.size(); ++i) {
    text += (i == 0 ? "" : ", ") + label.values[i];
  }
  return text;
}

}  // namespace

std::vector<double> OneTwoFive(double most) {
  std::vector<double> bounds;
  for (double decade = 1; decade <= 1e9; decade *= 10) {
    for (const double step : {1., 2., 5.}) {
      bounds.push_back(step * decade);
      if (bounds.back() >= most) return bounds;
    }
  }
  return bounds;
}

std::vector<std::vector<std::string>> SeriesFromStart(const MetricDef& def) {
  if (!def.from_start.empty()) return def.from_start;
  std::vector<std::vector<std::string>> all = {{}};
  for (const MetricLabel& label : def.labels) {
    std::vector<std::vector<std::string>> longer;
    for (const std::vector<std::string>& begin : all) {
      for (const std::string& value : label.values) {
        longer.push_back(begin);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

std::string DescribeMetrics(const std::vector<MetricDef>& table) {
  std::string text =
      "| Name | Type | Unit | Labels | What | When and how |\n|---|---|---|---|---|---|\n";
  std::map<std::string, std::vector<double>> buckets;
  for (const MetricDef& def : table) {
    std::string labels;
    for (const MetricLabel& label : def.labels) {
      labels += (labels.empty() ? "" : "; ") + LabelText(label);
    }
    text += "| `" + def.full_name() + "` | " + TypeName(def.type);
    if (def.type == MetricType::kHistogram) {
      text += " " + def.buckets.name;
      buckets[def.buckets.name] = def.buckets.bounds;
    }
    text += " | " + def.unit + " | " + labels + " | " + def.help + " | " + def.when + " |\n";
  }
  text += "\n| Buckets | Upper bounds, besides +Inf |\n|---|---|\n";
  for (const auto& [name, bounds] : buckets) {
    text += "| " + name + " |";
    for (const double bound : bounds) text += " " + Number(bound);
    text += " |\n";
  }
  return text;
}

}  // namespace bitshard
