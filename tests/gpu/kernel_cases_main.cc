// kernel_cases run SET: each launch of a set (small, calibration, large) once.
//
// kernel_cases write FILE SET...: and keeps what comes out; on the emulator, for the bundle.
//
// kernel_cases compare FILE TABLE SET...: lays what comes out beside such a file, a line a launch;
// exit status 1 when one fails (case_file.h).
//
// kernel_cases counters FILE SET: keeps the emulator's counters; its check build alone.
//
// kernel_cases metrics: what ncu is to be asked for.
//
// kernel_cases join FILE NCU.csv TABLE: lays them beside what ncu counted in `run SET`.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "kernels/base/status_macros.h"
#include "kernels/cuda/emu/options.h"
#include "tests/gpu/case_file.h"
#include "tests/gpu/counter_join.h"
#include "tests/gpu/findings_exit.h"
#include "tests/gpu/kernel_cases.h"

namespace bitshard {
namespace {

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError("cannot read " + path);
  return std::string{std::istreambuf_iterator<char>(file), {}};
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  return file.flush() ? absl::OkStatus() : absl::UnavailableError("cannot write " + path);
}

absl::StatusOr<std::vector<CaseSet>> Sets(const std::vector<std::string>& names) {
  std::vector<CaseSet> sets;
  for (const std::string& name : names) {
    if (!ParseCaseSet(name, &sets.emplace_back()))
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\" is no set: small, calibration, large"));
  }
  return sets;
}

absl::Status Run(CaseSet set) {
  int launches = 0;
  for (const CaseOutput& output : RunCases(set, {})) {
    ++launches;
    if (!output.error.empty())
      return absl::InternalError(absl::StrCat(output.launch, ": ", output.error));
  }
  std::printf("%d launches\n", launches);
  return absl::OkStatus();
}

absl::Status Write(const std::string& path, const std::vector<CaseSet>& sets) {
  std::vector<CaseOutput> all;
  for (const CaseSet set : sets) {
    for (CaseOutput& output : RunCases(set, {})) all.push_back(std::move(output));
  }
  return WriteCases(path, all);
}

// A set at a time, so that what was compared stays.
absl::Status Compare(const std::string& path, const std::string& table_path,
                     const std::vector<CaseSet>& sets) {
  ASSIGN_OR_RETURN(const std::vector<CaseOutput> stored, ReadCases(path));
  std::ofstream table(table_path);
  table << CaseHead() << std::endl;
  int launches = 0, failures = 0;
  double equal = 0, values = 0, furthest = 0;
  for (const CaseSet set : sets) {
    CaseOptions options;
    options.with_reference = set == CaseSet::kLarge;
    const std::vector<CaseOutput> ours = RunCases(set, options);
    for (const CaseDifference& d : CompareCases(ours, stored)) {
      table << CaseText(d) << std::endl;
      ++launches;
      equal += static_cast<double>(d.equal);
      values += static_cast<double>(d.values);
      furthest = std::max(furthest, d.norm_error);
      if (d.failure.empty()) continue;
      ++failures;
      std::printf("FAILED %s: %s\n", d.launch.c_str(), d.failure.c_str());
    }
  }
  if (!table) return absl::UnavailableError("cannot write " + table_path);
  std::printf(
      "%d launches, %d failed; %.4f of all values have the emulator's bits, the furthest "
      "results are %.3g from its\n",
      launches, failures, equal / values, furthest);
  return failures == 0 ? absl::OkStatus() : absl::FailedPreconditionError("launches failed");
}

absl::Status Count(const std::string& path, CaseSet set) {
  if (!emu::ChecksAccesses()) {
    return absl::UnimplementedError(
        "this build counts nothing: counters are of the emulator's check build");
  }
  std::vector<LaunchCounters> counters;
  CaseOptions options;
  options.hooks.before = [](const std::string&) { emu::ResetCounters(); };
  options.hooks.after = [&counters](const std::string& launch) {
    counters.push_back(CountersOf(launch, emu::GetCounters()));
  };
  (void)RunCases(set, options);
  return WriteText(path, CountersTable(counters));
}

absl::Status Join(const std::string& counters_path, const std::string& ncu_path,
                  const std::string& table_path) {
  ASSIGN_OR_RETURN(const std::string counters_text, ReadText(counters_path));
  ASSIGN_OR_RETURN(const std::vector<LaunchCounters> counters, ParseCountersTable(counters_text));
  ASSIGN_OR_RETURN(const std::string ncu, ReadText(ncu_path));
  ASSIGN_OR_RETURN(const CounterJoin join, JoinCounters(counters, ncu));
  std::string table = JoinHead() + "\n";
  int compared = 0, trusted = 0;
  for (const JoinedFigure& figure : join.figures) {
    table += JoinText(figure) + "\n";
    compared += figure.compared;
    trusted += figure.compared && figure.trusted;
  }
  RETURN_IF_ERROR(WriteText(table_path, table));
  std::printf("%s", table.c_str());
  for (const std::string& mismatch : join.mismatches)
    std::printf("MISMATCH %s\n", mismatch.c_str());
  std::printf(
      "%d of %d figures of the emulator within 0.95 to 1.05 of ncu's; bars on the others "
      "are not to be trusted; %d mismatches\n",
      trusted, compared, static_cast<int>(join.mismatches.size()));
  return join.mismatches.empty() ? absl::OkStatus()
                                 : absl::FailedPreconditionError("other kernels than ncu's");
}

absl::Status Main(const std::vector<std::string>& words) {
  const std::string verb = words.empty() ? "" : words[0];
  const size_t count = words.size();
  if (verb == "metrics" && count == 1) {
    std::printf("%s\n", absl::StrJoin(NcuMetrics(), ",").c_str());
    return absl::OkStatus();
  }
  if (verb == "join" && count == 4) return Join(words[1], words[2], words[3]);
  const size_t first = verb == "run" ? 1 : verb == "compare" ? 3 : 2;
  const bool one = verb == "run" || verb == "counters";
  if ((!one && verb != "write" && verb != "compare") || count < first + 1 ||
      (one && count != first + 1))
    return absl::InvalidArgumentError(
        "usage: kernel_cases run SET | write FILE SET... | compare FILE TABLE SET... | "
        "counters FILE SET | metrics | join FILE NCU.csv TABLE");
  ASSIGN_OR_RETURN(const std::vector<CaseSet> sets,
                   Sets({words.begin() + static_cast<int64_t>(first), words.end()}));
  // What the emulator makes here is laid beside a GPU's, which has more multiprocessors than the
  // fake by itself: they are part of the choice of kernels.
  setenv("BITSHARD_FAKE_CUDA_MULTIPROCESSORS", "132", /*overwrite=*/0);
  if (verb == "run") return Run(sets[0]);
  if (verb == "counters") return Count(words[1], sets[0]);
  return verb == "write" ? Write(words[1], sets) : Compare(words[1], words[2], sets);
}

}  // namespace
}  // namespace bitshard

int main(int argc, char** argv) {
  const absl::Status status = bitshard::Main({argv + 1, argv + argc});
  // What failed is said by stdout.
  if (!status.ok() && !absl::IsFailedPrecondition(status))
    std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  if (absl::IsInvalidArgument(status)) return 2;
  return bitshard::ExitStatus(status.ok() ? 0 : 1);
}
