// A thread for what is too long for gRPC's own few: tokenizing long prompts, rendering templates
// over them. Work is done in order; bounded.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "coordinator/stack_thread.h"

namespace bitshard {

class Background {
 public:
  // Of the queue: at most so many pieces of work, and so many bytes of their requests.
  Background(size_t max_queued, size_t max_bytes);
  ~Background();  // does what is queued, then ends

  // `bytes`: of the request that `work` is about. False when the queue is full; `work` is dropped
  // then. An empty queue takes one of any size.
  bool Run(size_t bytes, std::function<void()> work) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Work {
    size_t bytes = 0;
    std::function<void()> run;
  };

  void Loop();

  const size_t max_queued_, max_bytes_;
  absl::Mutex mu_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of queue_
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  StackThread thread_;
};

}  // namespace bitshard
