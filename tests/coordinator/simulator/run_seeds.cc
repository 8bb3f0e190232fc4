#include "tests/coordinator/simulator/run_seeds.h"

#include <csignal>
#include <cstdio>
#include <memory>
#include <unistd.h>

#include "absl/strings/str_cat.h"

#include "kernels/base/log.h"
#include "tests/support/byte_tokenizer.h"

namespace bitshard::sim {
namespace {

constexpr size_t kTraceLines = 60;

char last_words[160];

// Only what a signal handler may do.
void TellSeed(int) {
  if (write(STDERR_FILENO, last_words, sizeof(last_words) - 1) < 0) _exit(3);
  std::signal(SIGABRT, SIG_DFL);
}

std::string HowToReplay(uint64_t seed) {
  return absl::StrCat("bazel run //tests/coordinator/simulator:replay -- --seed=", seed);
}

const Tokenizer* TheTokenizer() {
  static const Tokenizer* const tokenizer = MakeByteTokenizer().release();
  return tokenizer;
}

}  // namespace

void KeepQuiet() { spdlog::set_level(spdlog::level::off); }

std::optional<Finding> RunSeeds(uint64_t first, uint64_t count, Met* met) {
  KeepQuiet();
  const auto former = std::signal(SIGABRT, TellSeed);
  std::optional<Finding> finding;
  for (uint64_t seed = first; seed < first + count && !finding.has_value(); ++seed) {
    std::snprintf(last_words, sizeof(last_words), "simulator: died with seed %llu; replay: %s\n",
                  static_cast<unsigned long long>(seed), HowToReplay(seed).c_str());
    const Outcome outcome = Simulation(seed, TheTokenizer(), {}).Run();
    met->Add(outcome.met);
    if (!outcome.violation.has_value()) continue;
    // Again, for the trace: it comes out the same.
    const Outcome again = Simulation(seed, TheTokenizer(), {.keep = kTraceLines}).Run();
    finding.emplace();
    finding->seed = seed;
    finding->violation = *outcome.violation;
    finding->report = absl::StrCat("seed ", seed, ": ", *outcome.violation, "\n", outcome.scenario);
    for (const std::string& line : again.trace) absl::StrAppend(&finding->report, line, "\n");
    absl::StrAppend(&finding->report, "replay: ", HowToReplay(seed), "\n");
  }
  std::signal(SIGABRT, former);
  return finding;
}

Outcome Replay(uint64_t seed) {
  std::printf("%s", MakeScenario(seed).Describe().c_str());
  return Simulation(seed, TheTokenizer(), {.keep = kTraceLines, .print = true}).Run();
}

}  // namespace bitshard::sim
