// The compute threads of one process, made in main and passed in. They do nothing but ParallelFor.
//
// One thread at a time may call ParallelFor (the step thread, or the loader before it); the caller
// works too, as thread 0. Helpers spin for a bounded few microseconds after a region, then sleep on
// a futex; with more threads than CPUs nobody spins. All run with round-to-nearest and subnormals
// (no FTZ, no DAZ): part of the same-bits promise.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <sched.h>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace bitshard {

// CPUs that this process may really use: affinity mask and cgroup quota (v2 and v1), at least 1.
int AvailableCpus();

// CPU numbers of the affinity mask, ascending.
std::vector<int> AffinityCpus();

// Those of AffinityCpus, one of every physical core first, then the cores' second threads.
std::vector<int> CpusByCore();

// Where the threads of one of several workers on this host may be pinned: `threads` CPUs that no
// other local rank gets. Empty when it is not sure that they are ours alone: the ranks together do
// not fill the affinity mask, or they are more than it holds, or a quota grants less than the mask
// (then others may see the same CPUs).
std::vector<int> CpusOfRank(int local_rank, int local_ranks, int threads);

// False when the system refuses; running unpinned is then fine.
bool PinCallingThread(int cpu);

// Round to nearest, no FTZ, no DAZ, all exceptions masked, for the calling thread.
void SetFloatEnvironment();

class ThreadPool {
 public:
  // fn(chunk, thread): thread is in [0, threads()), each runs one chunk at a time.
  using Fn = absl::FunctionRef<void(int64_t chunk, int thread)>;

  // Longer than the gap between two regions of a step, shorter than a time slice matters.
  static constexpr int64_t kDefaultSpinNs = 20'000;

  // `threads` counts the caller: 1 makes no thread at all. With `cpus`, helper i is pinned to
  // cpus[i] (1 <= i < threads), and cpus[0] is for the caller (PinnedCaller); an empty list pins
  // nothing. `spin_ns`: how long a thread looks for work or for the end of a region before it
  // sleeps; 0 where threads must share CPUs.
  explicit ThreadPool(int threads, const std::vector<int>& cpus = {},
                      int64_t spin_ns = kDefaultSpinNs);
  ~ThreadPool();

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Runs fn for every chunk in [0, chunks), in any order, and returns when all have ended. Each
  // thread begins with a run of neighbours of its own, in ascending order, so that it reads on
  // where it has just been; who has none left takes from the others. Must not be nested.
  void ParallelFor(int64_t chunks, Fn fn);

  // How often threads have waited for each other so far: regions of more than one chunk on more
  // than one thread.
  uint64_t synchronizations() const { return regions_; }

  int caller_cpu() const { return caller_cpu_; }  // -1: anywhere

 private:
  void HelperLoop(int thread, int cpu);
  void RunChunks(int thread);

  // Until `done`, or for spin_ns_; whether it is done.
  template <typename Done>
  bool Spin(const Done& done) const;

  const int64_t spin_ns_;
  const int caller_cpu_;
  uint64_t regions_ = 0;
  std::vector<std::thread> helpers_;

  // One word says it all: regions begun (upper bits), whether the latest is open, and how many
  // helpers are inside. A helper enters only an open region, and the caller waits only for those
  // inside: one that sleeps or has lost its core is not missed.
  std::atomic<uint32_t> gate_{0};
  std::atomic<uint32_t> left_{
      0};  // changes when the last helper leaves a closed region: what the caller sleeps on
  std::atomic<bool> stop_{false};
  std::atomic<bool> busy_{false};  // catches nesting and a second caller
  struct alignas(64) Run {
    std::atomic<int64_t> next{0};  // may go beyond `end`
    int64_t end = 0;
  };
  const std::unique_ptr<Run[]> runs_;  // by thread
  const Fn* fn_ = nullptr;
};

// Keeps the calling thread on the pool's first CPU, and gives it its old CPUs back: threads that it
// starts elsewhere (gRPC does) must not inherit the one.
class PinnedCaller {
 public:
  explicit PinnedCaller(const ThreadPool& pool);
  ~PinnedCaller();

  PinnedCaller(const PinnedCaller&) = delete;
  PinnedCaller& operator=(const PinnedCaller&) = delete;

 private:
  bool pinned_ = false;
  cpu_set_t before_;
};

}  // namespace bitshard
