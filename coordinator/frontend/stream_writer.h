// The thread that writes to clients, so that the engine's thread never does: it is told which
// stream has something to say, and looks again at those that could not say it all.
#pragma once

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "coordinator/loop_beat.h"

namespace bitshard {

class PumpedStream {
 public:
  virtual ~PumpedStream() = default;
  // Writes what there is; must not block. Called on any thread, also on several at once. True: look
  // again soon.
  virtual bool Pump(absl::Time now) = 0;
};

class StreamWriter {
 public:
  StreamWriter();
  ~StreamWriter();  // waits for the thread; streams that are still queued are dropped

  // Any thread, also the engine's: returns at once. Streams are shared with gRPC and the engine,
  // which let go of them at times of their own.
  void Wake(std::shared_ptr<PumpedStream> stream) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Loop();

  absl::Mutex mu_;
  std::deque<std::shared_ptr<PumpedStream>> ready_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::shared_ptr<PumpedStream>> again_;  // the thread's own
  LoopBeat beat_{"the thread that writes to clients"};
  std::thread thread_;
};

}  // namespace bitshard
