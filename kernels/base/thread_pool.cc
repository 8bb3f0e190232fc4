#include "kernels/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include "kernels/base/check.h"

namespace bitshard {
namespace {

// Some 10 to 30 us: longer than the gap between two regions of a step, shorter than a time slice
// matters.
constexpr int kSpins = 1000;

// Of the gate.
constexpr uint32_t kInside = 0xff;  // helpers inside
constexpr uint32_t kOpen = 0x100;
constexpr uint32_t kRegion = 0x200;  // added for each region; wrapping around is harmless

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

bool PinCallingThread(int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

void SetFloatEnvironment() {
#if defined(__x86_64__)
  constexpr unsigned kDefault = 0x1f80;  // exceptions masked, round to nearest, FTZ and DAZ off
  constexpr unsigned kStatusFlags = 0x3f;
  if ((__builtin_ia32_stmxcsr() & ~kStatusFlags) != kDefault) __builtin_ia32_ldmxcsr(kDefault);
#endif
}

ThreadPool::ThreadPool(int threads, const std::vector<int>& cpus) {
  CHECK_GE(threads, 1);
  CHECK_LE(threads, static_cast<int>(kInside));
  helpers_.reserve(threads - 1);
  for (int i = 1; i < threads; ++i) {
    const int cpu = static_cast<size_t>(i) < cpus.size() ? cpus[i] : -1;
    helpers_.emplace_back([this, i, cpu] { HelperLoop(i, cpu); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  gate_.fetch_add(kRegion, std::memory_order_release);
  gate_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::RunChunks(int thread) {
  const int64_t chunks = chunks_;
  const Fn& fn = *fn_;
  while (true) {
    const int64_t chunk = next_chunk_.fetch_add(1, std::memory_order_relaxed);
    if (chunk >= chunks) return;
    fn(chunk, thread);
  }
}

void ThreadPool::ParallelFor(int64_t chunks, Fn fn) {
  SetFloatEnvironment();
  if (chunks <= 0) return;
  if (helpers_.empty() || chunks == 1) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) fn(chunk, 0);
    return;
  }
  CHECK(!busy_.exchange(true, std::memory_order_acquire)) << "ParallelFor inside ParallelFor";
  fn_ = &fn;
  chunks_ = chunks;
  next_chunk_.store(0, std::memory_order_relaxed);
  // Publishes all of the above. Nobody is inside: the last region was left by all.
  gate_.store((gate_.load(std::memory_order_relaxed) & ~(kOpen | kInside)) + kRegion + kOpen,
              std::memory_order_release);
  gate_.notify_all();
  RunChunks(0);
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  // All chunks are taken; those inside still run theirs and use fn.
  for (int spin = 0; (gate_.load(std::memory_order_acquire) & kInside) != 0; ++spin) {
    if (spin < kSpins) {
      Pause();
      continue;
    }
    const uint32_t left = left_.load(std::memory_order_acquire);
    if ((gate_.load(std::memory_order_acquire) & kInside) != 0)
      left_.wait(left, std::memory_order_acquire);
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::HelperLoop(int thread, int cpu) {
  if (cpu >= 0) PinCallingThread(cpu);  // a refusal costs speed only
  SetFloatEnvironment();
  uint32_t seen = 0;  // the region last entered or missed
  while (true) {
    uint32_t gate = gate_.load(std::memory_order_acquire);
    for (int spin = 0; gate / kRegion == seen; ++spin) {
      if (spin < kSpins) {
        Pause();
      } else {
        gate_.wait(gate, std::memory_order_acquire);
      }
      gate = gate_.load(std::memory_order_acquire);
    }
    if (stop_.load(std::memory_order_relaxed)) return;
    seen = gate / kRegion;
    bool entered = false;
    while (!entered && gate / kRegion == seen && (gate & kOpen) != 0) {
      entered = gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel,
                                            std::memory_order_acquire);
    }
    if (!entered) continue;
    RunChunks(thread);
    const uint32_t before = gate_.fetch_sub(1, std::memory_order_acq_rel);
    if ((before & kInside) == 1 && (before & kOpen) == 0) {
      left_.fetch_add(1, std::memory_order_release);
      left_.notify_one();
    }
  }
}

}  // namespace bitshard
