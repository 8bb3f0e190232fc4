#include "coordinator/loop_beat.h"

#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace bitshard {
namespace {

struct Loops {
  absl::Mutex mu;
  std::set<const LoopBeat*> all ABSL_GUARDED_BY(mu);
};

Loops& AllLoops() {
  static Loops* const loops = new Loops();
  return *loops;
}

}  // namespace

LoopBeat::LoopBeat(std::string name) : name_(std::move(name)) {
  Loops& loops = AllLoops();
  absl::MutexLock lock(&loops.mu);
  loops.all.insert(this);
}

LoopBeat::~LoopBeat() {
  Loops& loops = AllLoops();
  absl::MutexLock lock(&loops.mu);
  loops.all.erase(this);
}

LoopBeat::Round LoopBeat::Longest() {
  Loops& loops = AllLoops();
  absl::MutexLock lock(&loops.mu);
  int64_t first = kWaiting;
  Round longest;
  for (const LoopBeat* const loop : loops.all) {
    const int64_t since = loop->since_ns_.load(std::memory_order_relaxed);
    if (since >= first) continue;
    first = since;
    longest.name = loop->name_;
  }
  if (first != kWaiting) longest.age = MonotonicNow() - absl::FromUnixNanos(first);
  return longest;
}

}  // namespace bitshard
