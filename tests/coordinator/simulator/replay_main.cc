// replay --seed=N: what the simulator does with that seed, line by line. With --count it runs the
// seeds from there on without a trace and reports the first that breaks a promise.
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"

#include "kernels/base/log.h"
#include "tests/coordinator/simulator/run_seeds.h"

ABSL_FLAG(uint64_t, seed, 1, "the first seed");
ABSL_FLAG(uint64_t, count, 1, "how many seeds; with 1 each step is shown");
ABSL_FLAG(std::string, log_level, "warning", "of what the coordinator's code logs, with one seed");

int main(int argc, char** argv) {
  using namespace bitshard;
  absl::ParseCommandLine(argc, argv);
  const uint64_t seed = absl::GetFlag(FLAGS_seed), count = absl::GetFlag(FLAGS_count);
  if (count == 1) {
    if (!InitLogging("replay", absl::GetFlag(FLAGS_log_level))) {
      std::fprintf(stderr, "--log_level: debug, info, warning or error\n");
      return 2;
    }
    const sim::Outcome outcome = sim::Replay(seed);
    std::printf("%s\n", outcome.met.ToString().c_str());
    if (!outcome.violation.has_value()) return 0;
    std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
                outcome.violation->c_str());
    return 1;
  }
  sim::Met met;
  const std::optional<sim::Finding> finding = sim::RunSeeds(seed, count, &met);
  std::printf("%s\n", met.ToString().c_str());
  if (!finding.has_value()) return 0;
  std::printf("%s", finding->report.c_str());
  return 1;
}
