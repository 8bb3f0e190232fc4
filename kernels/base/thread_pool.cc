#include "kernels/base/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include "kernels/base/check.h"

namespace bitshard {
namespace {

// About 10 us: longer than the gap between two regions of a step, shorter than a time slice matters.
constexpr int kSpins = 4000;

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
  helpers_.reserve(threads - 1);
  for (int i = 1; i < threads; ++i) {
    const int cpu = static_cast<size_t>(i) < cpus.size() ? cpus[i] : -1;
    helpers_.emplace_back([this, i, cpu] { HelperLoop(i, cpu); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
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
  active_helpers_.store(static_cast<uint32_t>(helpers_.size()), std::memory_order_relaxed);
  generation_.fetch_add(1, std::memory_order_release);  // publishes all of the above
  generation_.notify_all();
  RunChunks(0);
  // Every helper must have left the region before fn dies.
  for (int spin = 0; active_helpers_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) {
      Pause();
      continue;
    }
    const uint32_t left = active_helpers_.load(std::memory_order_acquire);
    if (left != 0) active_helpers_.wait(left, std::memory_order_acquire);
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::HelperLoop(int thread, int cpu) {
  if (cpu >= 0) PinCallingThread(cpu);  // a refusal costs speed only
  SetFloatEnvironment();
  uint32_t seen = 0;
  while (true) {
    for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; ++spin) Pause();
    generation_.wait(seen, std::memory_order_acquire);
    // A region cannot begin before all helpers have left the last one, so none is missed.
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) return;
    RunChunks(thread);
    if (active_helpers_.fetch_sub(1, std::memory_order_acq_rel) == 1) active_helpers_.notify_one();
  }
}

}  // namespace bitshard
