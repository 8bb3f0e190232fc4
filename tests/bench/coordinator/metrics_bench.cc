// CPU nanoseconds that the engine thread spends on metrics in one step, with many running requests:
// a gap a token, one end in 64, and what each step tells. And what a scrape costs its own thread.
//
//   bazel run -c opt //tests/bench/coordinator:metrics_bench
//
// Medians of kRounds rounds; the reference of the same run is a plain counter that two threads
// could share.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <vector>

#include "coordinator/metrics.h"

namespace bitshard {
namespace {

constexpr int kRounds = 9, kSteps = 2000;

// CPU time of this thread: others on the machine do not count.
double NowNs() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

template <typename Fn>
double MedianNs(int times, Fn fn) {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    const double begin = NowNs();
    for (int i = 0; i < times; ++i) fn(i);
    rounds.push_back((NowNs() - begin) / times);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

void Step(CoordinatorMetrics& metrics, uint32_t running, int step) {
  for (uint32_t i = 0; i < running; ++i)
    metrics.InterToken(absl::Microseconds(7000 + 10 * ((i + step) % 100)));
  metrics.GeneratedTokens(running);
  metrics.StepEnded({.kind = StepKind::kDecode,
                     .tokens = running,
                     .rows = running,
                     .execution = absl::Milliseconds(7),
                     .round_trip = absl::Milliseconds(8)});
  metrics.SchedulerTime(SchedulerOp::kCommit, absl::Microseconds(20));
  metrics.SchedulerTime(SchedulerOp::kPlan, absl::Microseconds(20));
  if (step % 64 != 0) return;
  RequestSummary summary;
  summary.prompt_tokens = 500;
  summary.completion_tokens = 64;
  summary.max_tokens = 64;
  summary.e2e = summary.decode = summary.after_first_token = absl::Milliseconds(448);
  metrics.Ended(summary);
  metrics.PromptTokens(500, 0);
}

void Main() {
  CoordinatorMetrics::Info info;
  info.context_tokens = 131072;
  info.world = 4;
  CoordinatorMetrics metrics(info);
  std::atomic<uint64_t> counter{0};
  std::printf("one shared counter: %.1f ns\n",
              MedianNs(kSteps, [&](int) { counter.fetch_add(1, std::memory_order_relaxed); }));
  for (const uint32_t running : {1u, 64u, 256u, 1024u}) {
    const double ns = MedianNs(kSteps, [&](int step) { Step(metrics, running, step); });
    std::printf("%4u running: %.0f ns a step, %.1f ns a token\n", running, ns, ns / running);
  }
  size_t bytes = 0;
  const double scrape = MedianNs(20, [&](int) { bytes = metrics.Page().size(); });
  std::printf("a scrape: %.2f ms of its own thread, %zu bytes\n", scrape * 1e-6, bytes);
}

}  // namespace
}  // namespace bitshard

int main() { bitshard::Main(); }
