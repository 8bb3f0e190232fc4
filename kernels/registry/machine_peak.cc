#include "kernels/registry/machine_peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"
#include "kernels/registry/kernel_registry.h"

namespace bitshard {
namespace {

// Beyond the caches of most machines; what a large last-level cache adds is there for weights too.
constexpr size_t kMemoryBytes = size_t{256} << 20;
constexpr size_t kReadStep = 512;
constexpr int kReadPasses = 6;           // about 40 ms
constexpr uint64_t kRounds = 2'000'000;  // about 30 ms

double ThreadCpuSeconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Took {
  double wall_s = 0;  // from the first start to the last end
  double cpu_s = 0;   // of all threads
};

// Runs work(thread) on all threads at once, each on a CPU of its own (where it is known which there
// are); they start together.
Took RunTogether(int threads, const std::function<void(int)>& work) {
  using Clock = std::chrono::steady_clock;
  std::atomic<int> waiting{threads};
  std::vector<Clock::time_point> begin(static_cast<size_t>(threads)), end(begin);
  std::vector<double> cpu(static_cast<size_t>(threads));
  const std::vector<int> cpus = AffinityCpus();
  const auto run = [&](int thread) {
    const size_t i = static_cast<size_t>(thread);
    if (!cpus.empty()) PinCallingThread(cpus[i % cpus.size()]);
    waiting.fetch_sub(1);
    while (waiting.load() > 0) std::this_thread::yield();
    begin[i] = Clock::now();
    const double before = ThreadCpuSeconds();
    work(thread);
    cpu[i] = ThreadCpuSeconds() - before;
    end[i] = Clock::now();
  };
  std::vector<std::thread> helpers;
  for (int thread = 0; thread < threads; ++thread) helpers.emplace_back(run, thread);
  for (std::thread& helper : helpers) helper.join();
  Took took;
  took.wall_s = std::chrono::duration<double>(*std::max_element(end.begin(), end.end()) -
                                              *std::min_element(begin.begin(), begin.end()))
                    .count();
  for (double seconds : cpu) took.cpu_s += seconds;
  return took;
}

double Rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

}  // namespace

void MachinePeaks::TakeBest(const MachinePeaks& other) {
  read_bytes_per_s = std::max(read_bytes_per_s, other.read_bytes_per_s);
  read_bytes_per_cpu_s = std::max(read_bytes_per_cpu_s, other.read_bytes_per_cpu_s);
  int_ops_per_s = std::max(int_ops_per_s, other.int_ops_per_s);
  int_ops_per_cpu_s = std::max(int_ops_per_cpu_s, other.int_ops_per_cpu_s);
}

PeakMeter::PeakMeter(int threads)
    : threads_(threads),
      probe_(*KernelRegistry<PeakProbe>::Get().Fastest(BestIsa())),
      memory_(kMemoryBytes, MemoryPart::kWeights) {  // in the pages that weights have
  CHECK_GT(threads, 0);
  std::memset(memory_.data(), 1, memory_.bytes());  // pages of zeros may all be one
}

MachinePeaks PeakMeter::Measure() const {
  const size_t threads = static_cast<size_t>(threads_);
  const size_t part = kMemoryBytes / threads / kReadStep * kReadStep;
  std::vector<uint64_t> results(threads);  // kept, so that no work is left out
  const Took read = RunTogether(threads_, [&](int thread) {
    const size_t i = static_cast<size_t>(thread);
    results[i] = 0;
    for (int pass = 0; pass < kReadPasses; ++pass)
      results[i] |= probe_.read(memory_.data() + i * part, part);
  });
  for (uint64_t result : results) CHECK_EQ(result, uint64_t{0});  // an even number of equal words
  const Took multiply = RunTogether(threads_, [&](int thread) {
    results[static_cast<size_t>(thread)] = probe_.multiply_add(kRounds);
  });
  const uint64_t multiply_adds = kRounds * probe_.multiply_adds_a_round;
  for (uint64_t result : results) CHECK_EQ(result, multiply_adds);

  const double bytes = static_cast<double>(part * threads * kReadPasses);
  const double ops = 2.0 * static_cast<double>(multiply_adds * threads);
  return {.read_bytes_per_s = Rate(bytes, read.wall_s),
          .read_bytes_per_cpu_s = Rate(bytes, read.cpu_s),
          .int_ops_per_s = Rate(ops, multiply.wall_s),
          .int_ops_per_cpu_s = Rate(ops, multiply.cpu_s)};
}

}  // namespace bitshard
