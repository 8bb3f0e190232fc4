#include "coordinator/tools/bench_report.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include <nlohmann/json.hpp>

#include "coordinator/tools/progress.h"
#include "kernels/base/cpu_features.h"
#include "kernels/base/thread_pool.h"
#include "proto/version.h"

namespace bitshard {
namespace {

using Json = nlohmann::ordered_json;

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// Processes that wanted to run, over the last minute: others on the machine show here.
double LoadAverage() {
  std::ifstream file("/proc/loadavg");
  double load = 0;
  file >> load;
  return load;
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json Milliseconds(std::vector<double> seconds) {
  Json out = Json::array();
  for (double value : seconds) out.push_back(std::round(value * 1e6) / 1e3);
  return out;
}

std::optional<double> MillisecondsOf(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  return std::round(*seconds * 1e6) / 1e3;
}

// Bytes that must be read for each token of a decode line.
std::optional<double> ReadBytesAToken(const BenchCase& what, const BenchBounds& bounds) {
  if (what.kind != BenchCase::Kind::kDecode || !bounds.step_weight_bytes ||
      !bounds.kv_bytes_a_token)
    return std::nullopt;
  const double context =
      what.prompt_tokens + what.output_tokens / 2.0;  // in the middle of the phase
  return static_cast<double>(*bounds.step_weight_bytes) / what.sequences +
         *bounds.kv_bytes_a_token * context;
}

std::optional<double> Share(std::optional<double> tokens_per_s, std::optional<double> a_token,
                            double peak) {
  if (!tokens_per_s || !a_token || peak <= 0) return std::nullopt;
  return *tokens_per_s * *a_token / peak;
}

std::string Percent(std::optional<double> share, std::optional<double> share_cpu) {
  if (!share) return "-";
  if (!share_cpu) return absl::StrFormat("%.1f %%", 100 * *share);
  return absl::StrFormat("%.1f / %.1f %%", 100 * *share, 100 * *share_cpu);
}

std::vector<std::string> Doubts(const BenchLine& line, const BenchFigures& figures) {
  std::vector<std::string> doubts;
  const auto bursts = std::count_if(line.samples.begin(), line.samples.end(),
                                    [](const BenchSample& sample) { return sample.burst; });
  if (bursts > 0) {
    doubts.push_back(
        absl::StrCat("in ", bursts, " of ", line.samples.size(),
                     " measurements tokens came in bursts, faster than the service made them: the "
                     "machine was busy and did not run this program in time"));
  }
  const auto above = [&doubts](const char* peak, std::optional<double> share,
                               std::optional<double> share_cpu, const char* why) {
    const double most = std::max(share.value_or(0), share_cpu.value_or(0));
    if (most > 1)
      doubts.push_back(absl::StrFormat("%.0f %% of the %s peak: %s", 100 * most, peak, why));
  };
  above("read", figures.read_share, figures.read_share_cpu,
        "the machine was busy while the peak or the row was measured, or the weights fit into the "
        "CPU's caches and are not read from memory");
  above("integer", figures.int_share, figures.int_share_cpu,
        "the machine was busy while the peak or the row was measured");
  return doubts;
}

Json LineJson(const BenchLine& line, const BenchBounds& bounds) {
  const BenchFigures figures = FiguresOf(line, bounds);
  Json samples = Json::array();
  for (const BenchSample& sample : line.samples) {
    samples.push_back({{"tokens", sample.tokens},
                       {"wall_s", sample.wall_s},
                       {"cpu_s", OrNull(sample.cpu_s)},
                       {"burst", sample.burst},
                       {"ttft_ms", Milliseconds(sample.ttft_s)},
                       {"gaps_ms", Milliseconds(sample.gaps_s)}});
  }
  return {{"name", line.what.Name()},
          {"kind", line.what.kind == BenchCase::Kind::kPrefill ? "prefill" : "decode"},
          {"prompt_tokens", line.what.prompt_tokens},
          {"output_tokens", line.what.output_tokens},
          {"sequences", line.what.sequences},
          {"median",
           {{"tokens_per_s", figures.tokens_per_s},
            {"tokens_per_cpu_s", OrNull(figures.tokens_per_cpu_s)},
            {"ttft_ms", OrNull(MillisecondsOf(figures.ttft_s))},
            {"gap_p50_ms", OrNull(MillisecondsOf(figures.gap_p50_s))},
            {"gap_p99_ms", OrNull(MillisecondsOf(figures.gap_p99_s))},
            {"read_share", OrNull(figures.read_share)},
            {"read_share_cpu", OrNull(figures.read_share_cpu)},
            {"int_share", OrNull(figures.int_share)},
            {"int_share_cpu", OrNull(figures.int_share_cpu)}}},
          {"doubts", figures.doubts},
          {"samples", samples}};
}

}  // namespace

double Percentile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(p * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

BenchFigures FiguresOf(const BenchLine& line, const BenchBounds& bounds) {
  std::vector<double> rates, cpu_rates, ttft, gaps;
  for (const BenchSample& sample : line.samples) {
    const double tokens = static_cast<double>(sample.tokens);
    rates.push_back(tokens / sample.wall_s);
    if (sample.cpu_s && *sample.cpu_s > 0) cpu_rates.push_back(tokens / *sample.cpu_s);
    ttft.push_back(Median(sample.ttft_s));
    gaps.insert(gaps.end(), sample.gaps_s.begin(), sample.gaps_s.end());
  }
  BenchFigures figures;
  figures.tokens_per_s = Median(rates);
  figures.lowest = *std::min_element(rates.begin(), rates.end());
  figures.highest = *std::max_element(rates.begin(), rates.end());
  if (cpu_rates.size() == rates.size()) figures.tokens_per_cpu_s = Median(cpu_rates);
  figures.ttft_s = Median(ttft);
  if (!gaps.empty()) {
    figures.gap_p50_s = Percentile(gaps, 0.5);
    figures.gap_p99_s = Percentile(gaps, 0.99);
  }
  if (bounds.peaks) {
    const std::optional<double> bytes = ReadBytesAToken(line.what, bounds);
    figures.read_share = Share(figures.tokens_per_s, bytes, bounds.peaks->read_bytes_per_s);
    figures.read_share_cpu =
        Share(figures.tokens_per_cpu_s, bytes, bounds.peaks->read_bytes_per_cpu_s);
    std::optional<double> ops;
    if (bounds.layer_parameters) ops = 2.0 * static_cast<double>(*bounds.layer_parameters);
    figures.int_share = Share(figures.tokens_per_s, ops, bounds.peaks->int_ops_per_s);
    figures.int_share_cpu = Share(figures.tokens_per_cpu_s, ops, bounds.peaks->int_ops_per_cpu_s);
  }
  figures.doubts = Doubts(line, figures);
  return figures;
}

std::string BenchTable(const BenchRun& run) {
  std::string out = absl::StrCat(run.model, ", ");
  if (run.workers > 0)
    absl::StrAppend(&out, run.workers, run.workers == 1 ? " worker, " : " workers, ");
  absl::StrAppend(&out, "activations ", run.activations, ", KV cache ", run.kv_cache_type, "\n");
  if (!run.note.empty()) absl::StrAppend(&out, run.note, "\n");
  absl::StrAppendFormat(&out, "%s, %d CPUs, kernels %s, load %.2f\n", CpuModel(), AvailableCpus(),
                        IsaName(BestIsa()), LoadAverage());
  if (run.bounds.peaks && run.bounds.devices > 0) {
    absl::StrAppendFormat(&out, "peak of %d GPU%s by data sheet: read %.1f GB/s\n",
                          run.bounds.devices, run.bounds.devices == 1 ? "" : "s",
                          run.bounds.peaks->read_bytes_per_s / 1e9);
  } else if (run.bounds.peaks) {
    const MachinePeaks& peaks = *run.bounds.peaks;
    absl::StrAppendFormat(&out,
                          "measured peaks of %d thread%s (by CPU time): read %.1f (%.1f) GB/s, %s "
                          "%.0f (%.0f) GOP/s\n",
                          run.bounds.peak_threads, run.bounds.peak_threads == 1 ? "" : "s",
                          peaks.read_bytes_per_s / 1e9, peaks.read_bytes_per_cpu_s / 1e9,
                          run.bounds.peak_instruction, peaks.int_ops_per_s / 1e9,
                          peaks.int_ops_per_cpu_s / 1e9);
  }
  std::vector<std::vector<std::string>> rows = {{"work", "tokens/s", "lowest-highest", "per CPU s",
                                                 "TTFT ms", "gap p50 ms", "p99 ms", "of read peak",
                                                 "of int peak"}};
  for (const BenchLine& line : run.lines) {
    const BenchFigures figures = FiguresOf(line, run.bounds);
    const auto ms = [](std::optional<double> seconds) {
      return seconds ? absl::StrFormat("%.2f", 1e3 * *seconds) : std::string("-");
    };
    rows.push_back(
        {line.what.Name(), absl::StrFormat("%.1f", figures.tokens_per_s),
         absl::StrFormat("%.1f-%.1f", figures.lowest, figures.highest),
         figures.tokens_per_cpu_s ? absl::StrFormat("%.1f", *figures.tokens_per_cpu_s) : "-",
         ms(figures.ttft_s), ms(figures.gap_p50_s), ms(figures.gap_p99_s),
         Percent(figures.read_share, figures.read_share_cpu),
         Percent(figures.int_share, figures.int_share_cpu)});
  }
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  out += "\n";
  for (const auto& row : rows) {
    std::string text = absl::StrFormat("%-*s", static_cast<int>(widths[0]), row[0]);
    for (size_t i = 1; i < row.size(); ++i)
      absl::StrAppendFormat(&text, "  %*s", static_cast<int>(widths[i]), row[i]);
    absl::StrAppend(&out, text, "\n");
  }
  bool doubted = false;
  for (const BenchLine& line : run.lines) {
    for (const std::string& doubt : FiguresOf(line, run.bounds).doubts) {
      absl::StrAppend(&out, doubted ? "" : "\n", "cannot be right: ", line.what.Name(), ": ", doubt,
                      "\n");
      doubted = true;
    }
  }
  if (doubted)
    out += "Measure again when nothing else runs, or with fewer --threads than there are CPUs.\n";
  return out;
}

std::string BenchJson(const BenchRun& run, int indent) {
  Json peaks = nullptr;
  if (run.bounds.peaks) {
    peaks = {{"devices", run.bounds.devices},
             {"threads", run.bounds.peak_threads},
             {"read_bytes_per_s", run.bounds.peaks->read_bytes_per_s},
             {"read_bytes_per_cpu_s", run.bounds.peaks->read_bytes_per_cpu_s},
             {"int_instruction", run.bounds.peak_instruction},
             {"int_ops_per_s", run.bounds.peaks->int_ops_per_s},
             {"int_ops_per_cpu_s", run.bounds.peaks->int_ops_per_cpu_s}};
  }
  Json lines = Json::array();
  for (const BenchLine& line : run.lines) lines.push_back(LineJson(line, run.bounds));
  const Json document = {{"bitshard", kBuildVersion},
                         {"machine",
                          {{"cpu", CpuModel()},
                           {"cpus", AvailableCpus()},
                           {"isa", std::string(IsaName(BestIsa()))},
                           {"load_1min", LoadAverage()},
                           {"peaks", peaks}}},
                         {"service",
                          {{"local", run.local},
                           {"model", run.model},
                           {"fingerprint", run.fingerprint},
                           {"workers", run.workers},
                           {"activations", run.activations},
                           {"kv_cache_type", run.kv_cache_type},
                           {"note", run.note},
                           {"step_weight_bytes", OrNull(run.bounds.step_weight_bytes)},
                           {"kv_bytes_a_token", OrNull(run.bounds.kv_bytes_a_token)},
                           {"layer_parameters", OrNull(run.bounds.layer_parameters)}}},
                         {"flags", run.flags},
                         {"lines", lines}};
  // Names may come from a checkpoint: what is no UTF-8 is replaced.
  return document.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace bitshard
