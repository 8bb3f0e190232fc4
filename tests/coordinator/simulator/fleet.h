// The real state machine of the fleet (coordinator/fleet: Group) on virtual time, over simulated
// connections to simulated workers: what coordinator/fleet/fleet.cc and transport.cc are to it in
// the service.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "coordinator/engine/step_executor.h"
#include "coordinator/fleet/group.h"
#include "tests/coordinator/simulator/fault.h"
#include "tests/coordinator/simulator/worker.h"
#include "tests/coordinator/simulator/world.h"

namespace bitshard::sim {

class Fleet final : public StepExecutor, private GroupOutput, private WorkerPort {
 public:
  struct Options {
    GroupOptions group;
    std::vector<Worker::Options> workers;
    std::vector<Fault> faults;
    int64_t latency_us = 0;  // of most messages
    uint32_t most_plans_out = 2;
  };

  Fleet(Options options, World* world);

  // StepExecutor, for the engine.
  void Start(StepListener* listener) override;
  void Submit(std::unique_ptr<internal::StepPlan> plan) override;
  void Stop() override {}

  // Faults that wait for a moment in time begin to count; those that wait for a phase are dropped
  // after `drop_after_us`.
  void StartFaults(int64_t drop_after_us);

  Group::State state() const { return group_.state(); }
  bool was_lost() const { return losses_ > 0; }
  uint64_t losses() const { return losses_; }
  // From then on nothing goes wrong any more that has begun to.
  int64_t disturbed_until() const { return disturbed_until_; }
  const Switchboard& switchboard() const { return switchboard_; }

 private:
  struct Wire {
    Worker* worker = nullptr;
    int64_t up_us = 0, down_us = 0;  // nothing arrives earlier
    bool open = true;                // for the coordinator
    bool told_of_end = false;        // EndEpoch was sent, and no JoinCommunicator since
  };

  // GroupOutput.
  void Send(absl::Span<const ConnectionId> to,
            const internal::CoordinatorMessage& message) override;
  void Close(ConnectionId connection, const absl::Status& why) override;
  void OnGroupReady(const GroupInfo& info) override;
  void OnStepDone(std::unique_ptr<internal::StepResult> result) override;
  void OnGroupLost(uint64_t term, uint64_t epoch, const absl::Status& why) override;
  void OnHopeless(const absl::Status& why) override;

  // WorkerPort.
  ConnectionId Dial(Worker* worker) override;
  void FromWorker(ConnectionId connection,
                  std::unique_ptr<internal::WorkerMessage> message) override;
  void HangUp(ConnectionId connection, bool noticed) override;
  void Hold(ConnectionId connection, int64_t us) override;
  void AtPhase(Worker* worker, Phase phase) override;

  void Tick();
  int64_t Latency();
  // When something that is sent now arrives, after what was sent before.
  int64_t ArrivalUp(Wire& wire);
  int64_t ArrivalDown(Wire& wire);
  void Strike(const Fault& fault);

  World* const world_;
  const Options options_;
  Switchboard switchboard_;
  Group group_;
  StepListener* listener_ = nullptr;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<ConnectionId, Wire> wires_;
  ConnectionId last_connection_ = 0;
  std::vector<Fault> waiting_faults_;  // for a phase
  int64_t drop_faults_at_ = INT64_MAX, disturbed_until_ = 0;

  // What the listener has been told.
  bool ready_ = false;
  uint64_t epoch_ = 0, plans_ = 0, results_ = 0, losses_ = 0;
};

}  // namespace bitshard::sim
