// A StepExecutor over one FakeWorker: for tests of the engine and of everything above it, without
// processes or weights.
//
// kManual: nothing happens by itself; the test says when the group is ready and when a step runs,
// on its own thread. kThread: the group is ready at Start, and one thread runs each plan as it
// comes, except while Hold() is on. A plan that a worker would refuse fails the running gtest test,
// and ends the group as a real refusal would.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "coordinator/engine/step_executor.h"
#include "tests/support/fake_worker.h"

namespace bitshard {

class FakeExecutor : public StepExecutor {
 public:
  enum class Mode { kManual, kThread };
  struct Options {
    Mode mode = Mode::kThread;
    GroupInfo group = {.term = 1,
                       .epoch = 0,
                       .world = 2,
                       .cache_blocks = 256,
                       .block_tokens = 16,
                       .max_slots = 16,
                       .max_step_tokens = 256};  // the epoch is counted up by each MakeReady
    FakeWorker::Options worker;
    bool ready_at_start = true;  // kThread only
  };

  explicit FakeExecutor(Options options);
  ~FakeExecutor() override;

  void Start(StepListener* listener) override;
  void Submit(std::unique_ptr<internal::StepPlan> plan) override;
  void Stop() override;

  // A new epoch begins. REQUIRES: started, no group is ready.
  void MakeReady();
  // The group is lost: plans that have not run never will. Nothing happens when no group is ready.
  void LoseGroup(absl::Status why);

  // As if a rank were further in a step than before. REQUIRES: started.
  void Move() { listener_->OnStepMoved(); }

  // kThread: while held, plans wait. Release goes on.
  void Hold();
  void Release();
  // Blocks until that many plans wait (held or manual). Tests use it instead of sleeping.
  void AwaitPlans(size_t count);

  // kManual: runs the oldest plan and reports its result; false when there is none.
  bool RunOne();
  // kManual: changes each result before it is reported.
  void set_tamper(std::function<void(internal::StepResult*)> tamper) {
    tamper_ = std::move(tamper);
  }

  size_t plans_waiting() const;
  uint64_t computed_tokens() const;
  uint32_t largest_step_tokens() const;
  uint32_t largest_row_tokens() const;
  uint64_t steps() const;

 private:
  void RunThread();
  bool CanRun() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopped_ || (!held_ && !plans_.empty());
  }
  // Runs `plan` and reports; called without the lock, by one thread at a time.
  void RunPlan(std::unique_ptr<internal::StepPlan> plan);

  const Options options_;
  StepListener* listener_ = nullptr;                   // constant after Start
  std::function<void(internal::StepResult*)> tamper_;  // constant after the first plan
  mutable absl::Mutex mu_;
  FakeWorker worker_ ABSL_GUARDED_BY(mu_);
  GroupInfo info_ ABSL_GUARDED_BY(mu_);
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::unique_ptr<internal::StepPlan>> plans_ ABSL_GUARDED_BY(mu_);
  absl::Mutex events_mu_
      ABSL_ACQUIRED_BEFORE(mu_);  // held while the listener is called: events keep their order
  std::thread thread_;
};

}  // namespace bitshard
