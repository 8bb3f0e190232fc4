// The workers as the engine's StepExecutor: the group's state machine over the fleet port, with a
// real clock that nobody sets (kernels/base/monotonic_time.h).
//
// A mutex serialises everything that happens to the group: messages (gRPC's threads), plans (the
// engine's thread) and ticks (a thread of its own). The listener is called under it, so that events
// keep their order; it must only hand over and must not call the fleet back from within.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include <grpcpp/security/server_credentials.h>

#include "coordinator/engine/step_executor.h"
#include "coordinator/fleet/group.h"
#include "coordinator/fleet/group_options.h"
#include "coordinator/fleet/transport.h"

namespace bitshard {

class WorkerFleet final : public StepExecutor, private GroupOutput, private TransportEvents {
 public:
  struct Options {
    GroupOptions group;
    std::string host = "127.0.0.1";
    int port = 0;  // 0 = pick one
    std::shared_ptr<grpc::ServerCredentials> credentials;
    // Once, on any thread: no group can form with this model and these workers.
    std::function<void(const absl::Status& why)> on_hopeless;
  };

  // Opens the port; workers are let in after Start.
  static absl::StatusOr<std::unique_ptr<WorkerFleet>> Listen(Options options);
  ~WorkerFleet() override;  // Stop()s

  int port() const { return transport_->port(); }

  void Start(StepListener* listener) override ABSL_LOCKS_EXCLUDED(mu_);
  void Submit(std::unique_ptr<internal::StepPlan> plan) override ABSL_LOCKS_EXCLUDED(mu_);
  void Stop() override ABSL_LOCKS_EXCLUDED(mu_);

  GroupSnapshot Snapshot() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit WorkerFleet(Options options);
  void TickLoop();

  void OnOpened(ConnectionId connection) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnMessage(ConnectionId connection, std::unique_ptr<internal::WorkerMessage> message) override
      ABSL_LOCKS_EXCLUDED(mu_);
  void OnClosed(ConnectionId connection) override ABSL_LOCKS_EXCLUDED(mu_);

  void Send(absl::Span<const ConnectionId> to,
            const internal::CoordinatorMessage& message) override;
  void Close(ConnectionId connection, const absl::Status& why) override;
  void OnGroupReady(const GroupInfo& info) override;
  void OnStepDone(std::unique_ptr<internal::StepResult> result) override;
  void OnStepMoved() override;
  void OnGroupLost(uint64_t term, uint64_t epoch, const absl::Status& why) override;
  void OnHopeless(const absl::Status& why) override;

  const std::function<void(const absl::Status& why)> on_hopeless_;
  mutable absl::Mutex mu_;
  Group group_ ABSL_GUARDED_BY(mu_);
  StepListener* listener_ ABSL_GUARDED_BY(mu_) = nullptr;  // null before Start and after Stop
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ = false;  // of the thread that calls Stop
  std::unique_ptr<FleetTransport> transport_;
  std::thread ticker_;
};

}  // namespace bitshard
