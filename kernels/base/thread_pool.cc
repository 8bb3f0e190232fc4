#include "kernels/base/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <pthread.h>
#include <sched.h>

#include "kernels/base/check.h"

namespace bitshard {
namespace {

// Of the gate.
constexpr uint32_t kInside = 0xff;  // helpers inside
constexpr uint32_t kOpen = 0x100;
constexpr uint32_t kRegion = 0x200;  // added for each region; wrapping around is harmless

// Between two looks at the clock.
constexpr int kPausesPerLook = 16;

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

ThreadPool::ThreadPool(int threads, const std::vector<int>& cpus, int64_t spin_ns)
    : spin_ns_(threads > static_cast<int>(AffinityCpus().size()) ? 0 : spin_ns),
      caller_cpu_(cpus.empty() ? -1 : cpus[0]),
      runs_(std::make_unique<Run[]>(static_cast<size_t>(std::max(threads, 1)))) {
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

template <typename Done>
bool ThreadPool::Spin(const Done& done) const {
  using Clock = std::chrono::steady_clock;
  if (done()) return true;
  if (spin_ns_ == 0) return false;
  const Clock::time_point end = Clock::now() + std::chrono::nanoseconds(spin_ns_);
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      Pause();
      if (done()) return true;
    }
  } while (Clock::now() < end);
  return false;
}

void ThreadPool::RunChunks(int thread) {
  const int all = threads();
  const Fn& fn = *fn_;
  for (int i = 0; i < all; ++i) {
    Run& run = runs_[(thread + i) % all];
    const int64_t end = run.end;
    // Looks before it takes: most runs of others have ended.
    while (run.next.load(std::memory_order_relaxed) < end) {
      const int64_t chunk = run.next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= end) break;
      fn(chunk, thread);
    }
  }
}

void ThreadPool::ParallelFor(int64_t chunks, Fn fn) {
  SetFloatEnvironment();
  if (chunks <= 0) return;
  if (helpers_.empty() || chunks == 1) {
    for (int64_t chunk = 0; chunk < chunks; ++chunk) fn(chunk, 0);
    return;
  }
  ++regions_;
  CHECK(!busy_.exchange(true, std::memory_order_acquire)) << "ParallelFor inside ParallelFor";
  fn_ = &fn;
  const int all = threads();
  for (int i = 0; i < all; ++i) {
    runs_[i].next.store(chunks * i / all, std::memory_order_relaxed);
    runs_[i].end = chunks * (i + 1) / all;
  }
  // Publishes all of the above. Nobody is inside: the last region was left by all.
  gate_.store((gate_.load(std::memory_order_relaxed) & ~(kOpen | kInside)) + kRegion + kOpen,
              std::memory_order_release);
  gate_.notify_all();
  RunChunks(0);
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  // All chunks are taken; those inside still run theirs and use fn.
  const auto all_left = [this] { return (gate_.load(std::memory_order_acquire) & kInside) == 0; };
  if (!Spin(all_left)) {
    while (true) {
      const uint32_t left = left_.load(std::memory_order_acquire);
      if (all_left()) break;
      left_.wait(left, std::memory_order_acquire);
    }
  }
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::HelperLoop(int thread, int cpu) {
  if (cpu >= 0) PinCallingThread(cpu);  // a refusal costs speed only
  SetFloatEnvironment();
  uint32_t seen = 0;  // the region last entered or missed
  while (true) {
    uint32_t gate = gate_.load(std::memory_order_acquire);
    Spin([&] {
      gate = gate_.load(std::memory_order_acquire);
      return gate / kRegion != seen;
    });
    while (gate / kRegion == seen) {
      gate_.wait(gate, std::memory_order_acquire);
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

PinnedCaller::PinnedCaller(const ThreadPool& pool) {
  const int cpu = pool.caller_cpu();
  if (cpu < 0 || pthread_getaffinity_np(pthread_self(), sizeof(before_), &before_) != 0) return;
  pinned_ = PinCallingThread(cpu);
}

PinnedCaller::~PinnedCaller() {
  if (pinned_) pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
}

}  // namespace bitshard
