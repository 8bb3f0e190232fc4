// The emulator's counters (kernels/cuda/emu/counters.h) beside those that Nsight Compute read from
// the device, launch by launch. Bars that CI puts on emulated counters are worth what this says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "kernels/cuda/emu/counters.h"

namespace bitshard {

// Of one call of a kernel, which may be several launches.
struct LaunchCounters {
  std::string launch;
  uint64_t launches = 0, blocks = 0;
  uint64_t read_sectors = 0, write_sectors = 0;     // of global memory
  uint64_t shared_waves = 0, shared_conflicts = 0;  // conflicts: waves beyond the fewest
  uint64_t mma = 0;
  uint64_t unique_bytes = 0;
};
LaunchCounters CountersOf(const std::string& launch, const emu::Counters& counters);

// A table with a head line, and back. DATA_LOSS names the line.
std::string CountersTable(absl::Span<const LaunchCounters> launches);
absl::StatusOr<std::vector<LaunchCounters>> ParseCountersTable(absl::string_view text);

// What ncu is to be asked for (--metrics), all that any figure needs.
std::vector<std::string> NcuMetrics();

struct JoinedFigure {
  std::string launch, kernel, figure;
  double emulated = 0, measured = 0;
  // measured / emulated; 1 when both are 0.
  double ratio = 0;
  bool other_grid = false;  // ncu saw another number of blocks, or no such launch
  bool compared = false;  // false: that, or ncu has no such metric, or the emulator no such figure
  bool trusted = false;   // 0.95 to 1.05
};

struct CounterJoin {
  std::vector<JoinedFigure> figures;
  // Where ncu's kernels are not the table's, in its order; the other launches are compared.
  std::vector<std::string> mismatches;
};

// `ncu_csv`: what `ncu --csv --page raw --print-units base` printed, other lines before and between
// included. INVALID_ARGUMENT when there is no kernel in it.
absl::StatusOr<CounterJoin> JoinCounters(absl::Span<const LaunchCounters> emulated,
                                         absl::string_view ncu_csv);

// "launch<tab>kernel<tab>figure<tab>emulated<tab>measured<tab>ratio<tab>verdict"
std::string JoinHead();
std::string JoinText(const JoinedFigure& figure);

}  // namespace bitshard
