// The thread that loads, binds, joins and runs steps, one task after the other in the order of the
// control stream.
//
// Owned by WorkerService. Public methods may be called from any thread and never wait for a task.
// The thread itself owns the weights, the runner and a joined communicator. Answers leave through
// `send`, tagged with the session (the control stream) that asked: answers to a stream that is gone
// are dropped there. Invariant: after End has returned no earlier plan, join or allocation begins
// any more; one that is running comes out because its communicator is aborted.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "proto/worker.pb.h"
#include "worker/metrics.h"
#include "worker/service/backend.h"
#include "worker/step/step_work.h"

namespace bitshard {

class StepThread {
 public:
  using SendFn = std::function<void(uint64_t session, internal::WorkerMessage message)>;

  struct Held {
    std::string plan_digest;  // empty: no weights
    uint32_t rank = 0;
  };

  // `metrics` may be null; it and `send` outlive the thread. `memory_bytes`: for weights, buffers
  // and cache.
  StepThread(WorkerBackend backend, uint64_t memory_bytes, SendFn send, WorkerMetrics* metrics);
  ~StepThread();  // aborts what runs and joins the thread

  void Assign(uint64_t session, std::unique_ptr<internal::Assign> assign);
  void Join(uint64_t session, internal::JoinCommunicator join);
  void Allocate(uint64_t session, internal::AllocateCache allocate);
  void Run(uint64_t session, std::unique_ptr<internal::StepPlan> plan);
  // For the join that waits for it.
  void Told(const internal::RendezvousOfAll& all);

  // Aborts the running epoch, drops the tasks that wait for it and the cache. With `report`,
  // Quiesced{epoch} follows.
  void End(uint64_t session, uint64_t epoch, bool report);

  Held held() const;
  // Epoch, step, op and busy; the term is the caller's.
  void FillHeartbeat(internal::Heartbeat& heartbeat) const;

 private:
  struct EndTask {
    uint64_t epoch = 0;
    bool report = false;
  };
  // A plan is shared with the runner, which may look ahead at it while End drops it from the queue.
  struct Task {
    uint64_t session = 0;
    std::variant<std::unique_ptr<internal::Assign>, internal::JoinCommunicator,
                 internal::AllocateCache, std::shared_ptr<const internal::StepPlan>, EndTask>
        what;
  };
  enum class EpochState { kNone, kJoined, kRunning, kFailed };

  void Push(Task task);
  void Loop();
  // False when the epoch was ended meanwhile; `collective` is aborted then, else it will be when
  // End comes.
  bool WatchCollective(Collective* collective);
  void DoAssign(uint64_t session, const internal::Assign& assign);
  absl::Status LoadAndBind(uint64_t session, const internal::Assign& assign,
                           internal::Loaded& loaded);
  void DoJoin(uint64_t session, const internal::JoinCommunicator& join);
  absl::StatusOr<std::vector<std::string>> TellRanks(uint64_t session,
                                                     const internal::JoinCommunicator& join,
                                                     const std::string& mine);
  void DoAllocate(uint64_t session, const internal::AllocateCache& allocate);
  void DoRun(uint64_t session, const internal::StepPlan& plan);
  // What is first in the queue, if it is a plan; null otherwise.
  std::shared_ptr<const internal::StepPlan> NextPlan() const;
  void CountStep(const internal::StepPlan& plan, const internal::StepResult& result);
  void DoEnd(uint64_t session, const EndTask& end);
  // Time since the last mark, in microseconds; the first one is the process's start.
  uint64_t MarkUs();
  void LogBringUp() const;
  // Drops communicator and cache. An error as StepRunner::EndEpoch.
  absl::Status LeaveEpoch();
  void Fail(uint64_t session, uint64_t epoch, const absl::Status& status);

  const WorkerBackend backend_;
  const uint64_t memory_bytes_;
  const SendFn send_;
  WorkerMetrics* const metrics_;

  mutable absl::Mutex mu_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t pending_ends_ ABSL_GUARDED_BY(mu_) = 0;  // End calls whose task has not run yet
  Collective* watched_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::optional<internal::RendezvousOfAll> told_ ABSL_GUARDED_BY(mu_);  // the last
  std::atomic<bool> stop_joining_{false};  // set together with what watched_ is aborted for
  Held held_ ABSL_GUARDED_BY(mu_);
  uint64_t heartbeat_epoch_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<StepRunner> runner_
      ABSL_GUARDED_BY(mu_);  // replaced under mu_; used freely by the thread itself

  // The thread's own.
  std::shared_ptr<const LoadedWeights> weights_;  // shared with the runner
  StepRunner* bound_ = nullptr;                   // == runner_.get()
  StepWork work_;                                 // of the bound graph, for the metrics
  uint32_t rank_ = 0, world_ = 0;
  uint64_t term_ = 0;
  EpochState epoch_state_ = EpochState::kNone;
  uint64_t epoch_ = 0;
  bool lost_ = false;  // the device, and that has been said
  std::unique_ptr<Collective> joined_;
  std::chrono::steady_clock::time_point mark_;
  internal::BringUp bring_up_;        // of the last bring-up, as far as it has come
  internal::BringUp first_bring_up_;  // what is told

  std::thread thread_;  // last: starts when everything else is there
};

}  // namespace bitshard
