// Virtual time: what is to happen, in the order of its time, and of its planning where times are
// equal. Times are microseconds since the simulation's begin.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace bitshard::sim {

inline constexpr int64_t kMillisecond = 1000, kSecond = 1'000'000;

class EventQueue {
 public:
  using Action = std::function<void()>;

  int64_t now() const { return now_; }
  // As the code under test sees it.
  absl::Time time() const { return TimeAt(now_); }
  static absl::Time TimeAt(int64_t us) { return absl::FromUnixMicros(1'000'000 * kSecond + us); }
  static int64_t UsOf(absl::Time time) { return absl::ToUnixMicros(time) - 1'000'000 * kSecond; }

  void At(int64_t us, Action action) {
    heap_.push_back({std::max(us, now_), ++planned_, std::move(action)});
    std::push_heap(heap_.begin(), heap_.end(), Later());
  }
  void After(int64_t us, Action action) { At(now_ + us, std::move(action)); }

  // False when nothing is to happen any more.
  bool RunNext() {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), Later());
    Event event = std::move(heap_.back());
    heap_.pop_back();
    now_ = event.us;
    event.action();
    return true;
  }

 private:
  struct Event {
    int64_t us;
    uint64_t order;
    Action action;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.us != b.us ? a.us > b.us : a.order > b.order;
    }
  };

  int64_t now_ = 0;
  uint64_t planned_ = 0;
  std::vector<Event> heap_;
};

}  // namespace bitshard::sim
