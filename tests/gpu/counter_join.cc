#include "tests/gpu/counter_join.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr const char* kGridSize = "launch__grid_size";

// A figure is the sum of those of its metrics that this ncu has. Copies from global to shared
// memory (cp.async) have counters of their own.
struct Figure {
  const char* name;
  double (*emulated)(const LaunchCounters& c);  // null: there is none
  std::vector<const char*> metrics;
};
const std::vector<Figure>& Figures() {
  static const auto* const figures = new std::vector<Figure>{
      {"global load sectors",
       [](const LaunchCounters& c) { return 1.0 * c.read_sectors; },
       {"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access.sum",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_bypass.sum"}},
      {"global store sectors",
       [](const LaunchCounters& c) { return 1.0 * c.write_sectors; },
       {"l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"}},
      {"shared conflicts",
       [](const LaunchCounters& c) { return 1.0 * c.shared_conflicts; },
       {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"}},
      {"mma instructions",
       [](const LaunchCounters& c) { return 1.0 * c.mma; },
       {"sm__inst_executed_pipe_tensor_op_hmma.sum"}},
      {"DRAM bytes read, of all bytes once",
       [](const LaunchCounters& c) { return 1.0 * c.unique_bytes; },
       {"dram__bytes_read.sum"}},
      {"instructions", nullptr, {"smsp__inst_executed.sum"}},
  };
  return *figures;
}

// Fields of one line of CSV; quotes are doubled inside quotes.
std::vector<std::string> SplitCsv(absl::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += line[i++];
    } else if (line[i] == '"') {
      quoted = !quoted;
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else if (line[i] != '\r') {
      fields.back() += line[i];
    }
  }
  return fields;
}

// "1,234.5" too.
bool ParseNumber(const std::string& text, double* value) {
  return absl::SimpleAtod(absl::StrReplaceAll(text, {{",", ""}}), value) && std::isfinite(*value);
}

struct NcuLaunch {
  std::string kernel;
  std::map<std::string, double> metrics;
};

// The rows behind the head line that begins with "ID"; the line of units has no ID.
absl::StatusOr<std::vector<NcuLaunch>> ParseNcu(absl::string_view csv) {
  std::vector<std::string> head;
  std::vector<NcuLaunch> launches;
  for (const absl::string_view line : absl::StrSplit(csv, '\n')) {
    if (!absl::StartsWith(line, "\"")) continue;
    std::vector<std::string> fields = SplitCsv(line);
    if (fields[0] == "ID") {
      head = std::move(fields);
      continue;
    }
    double id;
    if (head.empty() || !ParseNumber(fields[0], &id)) continue;
    if (fields.size() != head.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("ncu: a row of ", fields.size(), " fields under a head of ", head.size()));
    }
    NcuLaunch& launch = launches.emplace_back();
    for (size_t i = 0; i < head.size(); ++i) {
      double value;
      if (head[i] == "Kernel Name") launch.kernel = fields[i];
      if (ParseNumber(fields[i], &value)) launch.metrics[head[i]] = value;
    }
  }
  if (launches.empty())
    return absl::InvalidArgumentError("ncu: no line of its output is a kernel's row");
  return launches;
}

JoinedFigure Join(const LaunchCounters& counters, const Figure& figure,
                  absl::Span<const NcuLaunch> rows, bool same_grid) {
  JoinedFigure joined;
  joined.other_grid = !same_grid;
  joined.launch = counters.launch;
  joined.figure = figure.name;
  std::vector<std::string> kernels;
  bool measured = false;
  for (const NcuLaunch& row : rows) {
    kernels.push_back(row.kernel);
    for (const char* metric : figure.metrics) {
      const auto found = row.metrics.find(metric);
      if (found == row.metrics.end()) continue;
      measured = true;
      joined.measured += found->second;
    }
  }
  joined.kernel = absl::StrJoin(kernels, " + ");
  if (figure.emulated != nullptr) joined.emulated = figure.emulated(counters);
  joined.compared = same_grid && measured && figure.emulated != nullptr;
  if (!joined.compared) return joined;
  joined.ratio = joined.measured == joined.emulated ? 1 : joined.measured / joined.emulated;
  joined.trusted = joined.ratio >= 0.95 && joined.ratio <= 1.05;
  return joined;
}

constexpr const char* kColumns[] = {"launch",           "launches",      "blocks",
                                    "read sectors",     "write sectors", "shared waves",
                                    "shared conflicts", "mma",           "unique bytes"};

// In the order of kColumns behind the first.
template <typename Counters>
auto NumbersOf(Counters& c) {
  return std::vector{&c.launches,     &c.blocks,           &c.read_sectors, &c.write_sectors,
                     &c.shared_waves, &c.shared_conflicts, &c.mma,          &c.unique_bytes};
}

}  // namespace

LaunchCounters CountersOf(const std::string& launch, const emu::Counters& counters) {
  LaunchCounters c;
  c.launch = launch;
  c.launches = counters.launches;
  c.blocks = counters.blocks;
  c.mma = counters.mma;
  c.unique_bytes = counters.unique_bytes;
  c.shared_waves = counters.shared.done;
  c.shared_conflicts = counters.shared.done - counters.shared.ideal;
  c.write_sectors = counters.global_writes.done;
  c.read_sectors = counters.global.done - c.write_sectors;
  return c;
}

std::string CountersTable(absl::Span<const LaunchCounters> launches) {
  std::string text = absl::StrCat(absl::StrJoin(kColumns, "\t"), "\n");
  for (const LaunchCounters& c : launches) {
    absl::StrAppend(&text, c.launch);
    for (const uint64_t* number : NumbersOf(c)) absl::StrAppend(&text, "\t", *number);
    absl::StrAppend(&text, "\n");
  }
  return text;
}

absl::StatusOr<std::vector<LaunchCounters>> ParseCountersTable(absl::string_view text) {
  std::vector<LaunchCounters> launches;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const auto bad = [&](absl::string_view what) {
      return absl::DataLossError(absl::StrCat("counters, line ", number, ": ", what));
    };
    ++number;
    if (number == 1) {
      if (line != absl::StrJoin(kColumns, "\t")) return bad("another table");
      continue;
    }
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    LaunchCounters& c = launches.emplace_back();
    const std::vector<uint64_t*> numbers = NumbersOf(c);
    if (fields.size() != numbers.size() + 1) return bad("too few or too many fields");
    c.launch = fields[0];
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (!absl::SimpleAtoi(fields[i + 1], numbers[i])) return bad(fields[i + 1] + " is no count");
    }
  }
  if (launches.empty()) return absl::DataLossError("counters: no launches");
  return launches;
}

std::vector<std::string> NcuMetrics() {
  std::vector<std::string> metrics = {kGridSize};
  for (const Figure& figure : Figures())
    metrics.insert(metrics.end(), figure.metrics.begin(), figure.metrics.end());
  return metrics;
}

absl::StatusOr<CounterJoin> JoinCounters(absl::Span<const LaunchCounters> emulated,
                                         absl::string_view ncu_csv) {
  ASSIGN_OR_RETURN(const std::vector<NcuLaunch> rows, ParseNcu(ncu_csv));
  CounterJoin join;
  size_t at = 0;
  for (const LaunchCounters& counters : emulated) {
    const absl::Span<const NcuLaunch> its =
        absl::MakeConstSpan(rows).subspan(std::min(at, rows.size()), counters.launches);
    at += counters.launches;
    double blocks = 0;
    for (const NcuLaunch& row : its) {
      const auto found = row.metrics.find(kGridSize);
      blocks += found == row.metrics.end() ? 0 : found->second;
    }
    const bool same = blocks == static_cast<double>(counters.blocks);
    if (!same) {
      join.mismatches.push_back(absl::StrCat(counters.launch, ": ncu saw ", blocks, " blocks of ",
                                             its.empty() ? "no kernel" : its[0].kernel,
                                             ", the emulator ", counters.blocks));
    }
    for (const Figure& figure : Figures())
      join.figures.push_back(Join(counters, figure, its, same));
  }
  if (at != rows.size()) {
    join.mismatches.push_back(absl::StrCat("ncu has ", rows.size(), " kernels, the emulator ", at));
  }
  return join;
}

std::string JoinHead() { return "launch\tkernel\tfigure\temulated\tmeasured\tratio\tverdict"; }

std::string JoinText(const JoinedFigure& f) {
  const char* const verdict = f.other_grid  ? "OTHER GRID"
                              : !f.compared ? "not compared"
                              : f.trusted   ? "ok"
                                            : "NOT TRUSTED";
  return absl::StrFormat("%s\t%s\t%s\t%.0f\t%.0f\t%s\t%s", f.launch, f.kernel, f.figure, f.emulated,
                         f.measured, f.compared ? absl::StrFormat("%.3f", f.ratio) : "", verdict);
}

}  // namespace bitshard
