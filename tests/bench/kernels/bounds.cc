#include "tests/bench/kernels/bounds.h"

#include <algorithm>
#include <ctime>
#include <map>

#include "kernels/registry/machine_peak.h"

namespace bitshard {
namespace {

constexpr int kMeasurements = 3;  // the best counts: other processes only slow down

double Seconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

#if defined(__x86_64__)
// Chains enough to hide the latency, all in registers.
__attribute__((target("avx2,fma"), optimize("O3"))) void FmaAvx2(float* acc, int n) {
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < 80; ++j) acc[j] = __builtin_fmaf(acc[j], 0.5f, 1.0f);
  }
}
__attribute__((target("avx512f,prefer-vector-width=512"), optimize("O3"))) void FmaAvx512(
    float* acc, int n) {
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < 256; ++j) acc[j] = __builtin_fmaf(acc[j], 0.5f, 1.0f);
  }
}
#endif

double FmasPerSecond() {
  constexpr int kTimes = 500'000;  // some tens of milliseconds
  alignas(64) float acc[256] = {};
  double best = 0;
  for (int i = 0; i < kMeasurements; ++i) {
    const double start = Seconds(CLOCK_THREAD_CPUTIME_ID);
    RunFmas(BestIsa(), acc, kTimes);
    benchmark::DoNotOptimize(acc);
    const double took = Seconds(CLOCK_THREAD_CPUTIME_ID) - start;
    best = std::max(best, static_cast<double>(kTimes) * FmasATime(BestIsa()) / took);
  }
  return best;
}

struct Peaks {
  double bytes_per_s = 0, macs_per_s = 0, fmas_per_s = 0;  // of all threads
};

const Peaks& PeaksOf(int threads) {
  static std::map<int, Peaks> measured;
  const auto [entry, is_new] = measured.try_emplace(threads);
  if (!is_new) return entry->second;
  const PeakMeter meter(threads);
  MachinePeaks best;
  for (int i = 0; i < kMeasurements; ++i) best.TakeBest(meter.Measure());
  const bool one = threads == 1;
  entry->second = {.bytes_per_s = one ? best.read_bytes_per_cpu_s : best.read_bytes_per_s,
                   .macs_per_s = (one ? best.int_ops_per_cpu_s : best.int_ops_per_s) / 2,
                   .fmas_per_s = FmasPerSecond() * threads};
  return entry->second;
}

}  // namespace

int FmasATime(Isa isa) { return isa == Isa::kScalar ? 1 : isa == Isa::kAvx2 ? 80 : 256; }

void RunFmas(Isa isa, float* acc, int times) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512Vnni) return FmaAvx512(acc, times);
  if (isa == Isa::kAvx2) return FmaAvx2(acc, times);
#endif
  for (int i = 0; i < times; ++i) acc[0] = __builtin_fmaf(acc[0], 0.5f, 1.0f);
}

ShareOfBound::ShareOfBound(int threads) : threads_(threads) {
  PeaksOf(threads);  // not while the clock runs
  start_s_ = Now();
}

double ShareOfBound::Now() const {
  return Seconds(threads_ == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC);
}

void ShareOfBound::Report(benchmark::State& state, const Need& need) const {
  const double took = Now() - start_s_;
  const Peaks& peaks = PeaksOf(threads_);
  const double least = std::max({need.memory_bytes / peaks.bytes_per_s,
                                 need.int_macs / peaks.macs_per_s, need.fmas / peaks.fmas_per_s});
  state.counters["share_of_bound"] = least * static_cast<double>(state.iterations()) / took;
}

}  // namespace bitshard
