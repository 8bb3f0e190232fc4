// Ends a communicator whose operations do not: a thread that looks every 20 ms how long the step
// thread has been in a call, or waiting for the device, and what the library says about itself.
//
// The thread calls `abort` once, and `error` never after it. Both belong to the communicator, which
// is no more then: the step thread must not be inside the library, so that calls are bracketed by
// Enter and Leave. A call that does not come back within 2 s is left in it: the abort is what frees
// it.
//
// A deadline moves on when the progress word has changed: a step of many operations may take longer
// than one of them.
//
// That the communicator has ended is kept here: work that was cut off ends without an error of its
// own.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "kernels/base/monotonic_time.h"

namespace bitshard {

class Watchdog {
 public:
  struct Options {
    std::string communicator;  // "nccl communicator bitshard-...", for people
    int rank = 0;
    absl::Duration operation_timeout;
    // Until SetConnected: a library makes its connections at the first use of each. Zero: the same.
    absl::Duration connect_timeout;
    std::string advice;  // what to try, at the end of each error
    // What the library has found: OK, or what is wrong. On the watchdog's thread.
    std::function<absl::Status()> error;
    // Makes whatever waits for other ranks end. On the watchdog's thread.
    std::function<void()> abort;
    // The clock of deadlines; of tests another one. Any thread, under the lock.
    std::function<absl::Time()> now = MonotonicNow;
  };

  explicit Watchdog(Options options);
  // Once the thread has ended, with it an abort that was begun.
  ~Watchdog();

  // The step thread.

  // An operation is begun; `what` lives for ever: "all_reduce".
  void Note(const char* what, uint64_t bytes);
  // Before a call into the library. An error when the communicator has ended: no call, no Leave.
  absl::Status Enter();
  // After it. With an error of the library's the communicator ends. Returns status().
  absl::Status Leave(const absl::Status& result = absl::OkStatus());
  // Between them the device is waited for. Return status().
  absl::Status BeginWait();
  absl::Status EndWait();
  // Whoever else writes it does so atomically. Read between Enter and Leave, BeginWait and EndWait;
  // null: none.
  void SetProgressWord(const uint64_t* word);
  // What steps will use has been used.
  void SetConnected();

  // Any thread. OK, or why the communicator has ended.
  absl::Status status() const;
  // Any thread; the abort itself comes from the watchdog's. status() is CollectiveAbort from then
  // on, unless it has ended before.
  void Abort();

 private:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(20);
  static constexpr absl::Duration kCallPatience = absl::Seconds(2);

  void Loop();
  void StartTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The progress word, 0 without; REQUIRES: a timer runs.
  uint64_t Progress() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fire(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Why(absl::string_view what) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;

  mutable absl::Mutex mu_;
  absl::Duration timeout_ ABSL_GUARDED_BY(mu_);
  uint64_t begun_ ABSL_GUARDED_BY(mu_) = 0;  // operations; the last one:
  const char* what_ ABSL_GUARDED_BY(mu_) = "";
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool inside_ ABSL_GUARDED_BY(mu_) = false;   // the step thread is in a call
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;  // it waits for the device
  absl::Time deadline_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();  // infinite: no timer runs
  const uint64_t* progress_word_ ABSL_GUARDED_BY(mu_) = nullptr;
  uint64_t progress_ ABSL_GUARDED_BY(mu_) = 0;  // what it said last
  absl::Status fired_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace bitshard
