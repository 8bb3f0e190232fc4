// A thread for what is too long for gRPC's own few: tokenizing long prompts, rendering templates
// over them. In order; bounded.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "coordinator/stack_thread.h"

namespace bitshard {

class Background {
 public:
  // Called once: with OK when its turn has come, otherwise with the reason why it never will.
  using Work = std::function<void(const absl::Status& turn)>;

  // Of the queue: at most so many pieces of work, and so many bytes of their requests.
  Background(size_t max_queued, size_t max_bytes);
  ~Background();  // Stop, and waits for the work that is being done

  // `bytes`: of the request that `work` is about. False when the queue is full; `work` is dropped
  // then. An empty queue takes one of any size.
  bool Run(size_t bytes, Work work) ABSL_LOCKS_EXCLUDED(mu_);
  // What is queued, and what comes later, is told at once that the service ends.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Queued {
    size_t bytes = 0;
    Work run;
  };

  void Loop();

  const size_t max_queued_, max_bytes_;
  absl::Mutex mu_;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of queue_
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  StackThread thread_;
};

}  // namespace bitshard
