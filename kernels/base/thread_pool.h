// The compute threads of one process, made in main and passed in. They do nothing but ParallelFor.
//
// One thread at a time may call ParallelFor (the step thread, or the loader before it); the caller
// works too, as thread 0. Helpers spin for a bounded few microseconds after a region, then sleep on
// a futex. All run with round-to-nearest and subnormals (no FTZ, no DAZ): part of the same-bits
// promise.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"

namespace bitshard {

// CPUs that this process may really use: affinity mask and cgroup quota (v2 and v1), at least 1.
int AvailableCpus();

// CPU numbers of the affinity mask, ascending.
std::vector<int> AffinityCpus();

// False when the system refuses; running unpinned is then fine.
bool PinCallingThread(int cpu);

// Round to nearest, no FTZ, no DAZ, all exceptions masked, for the calling thread.
void SetFloatEnvironment();

class ThreadPool {
 public:
  // fn(chunk, thread): thread is in [0, threads()), each runs one chunk at a time.
  using Fn = absl::FunctionRef<void(int64_t chunk, int thread)>;

  // `threads` counts the caller: 1 makes no thread at all. With `cpus`, helper i is pinned to
  // cpus[i] (1 <= i < threads; the caller pins itself to cpus[0] if it likes); an empty list pins
  // nothing.
  explicit ThreadPool(int threads, const std::vector<int>& cpus = {});
  ~ThreadPool();

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Runs fn for every chunk in [0, chunks), in any order, and returns when all have ended. Must not
  // be nested.
  void ParallelFor(int64_t chunks, Fn fn);

 private:
  void HelperLoop(int thread, int cpu);
  void RunChunks(int thread);

  std::vector<std::thread> helpers_;

  // One word says it all: regions begun (upper bits), whether the latest is open, and how many
  // helpers are inside. A helper enters only an open region, and the caller waits only for those
  // inside: one that sleeps or has lost its core is not missed.
  std::atomic<uint32_t> gate_{0};
  std::atomic<uint32_t> left_{
      0};  // changes when the last helper leaves a closed region: what the caller sleeps on
  std::atomic<bool> stop_{false};
  std::atomic<bool> busy_{false};  // catches nesting and a second caller
  alignas(64) std::atomic<int64_t> next_chunk_{0};
  int64_t chunks_ = 0;
  const Fn* fn_ = nullptr;
};

}  // namespace bitshard
