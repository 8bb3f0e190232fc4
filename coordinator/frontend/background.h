// A thread for what is too long for gRPC's own few: tokenizing long prompts. Work is done in order;
// bounded.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace bitshard {

class Background {
 public:
  explicit Background(size_t max_queued);
  ~Background();  // does what is queued, then ends

  // False when the queue is full; `work` is dropped then.
  bool Run(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Loop();

  const size_t max_queued_;
  absl::Mutex mu_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace bitshard
