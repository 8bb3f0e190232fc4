// One worker process, as the coordinator meets it: it dials, registers, loads, joins, allocates,
// runs steps and comes to rest, as worker/service does (one control stream, one step thread that
// works off its tasks in order), with everything that can go wrong on the way.
//
// A process that dies is followed by another one in the same place. What a frozen process would
// have done it does when it goes on.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/fleet/member.h"
#include "proto/worker.pb.h"
#include "tests/coordinator/simulator/communicator.h"
#include "tests/coordinator/simulator/fault.h"
#include "tests/coordinator/simulator/world.h"

namespace bitshard::sim {

class Worker;

// The way to the coordinator. Messages of a connection arrive in order.
class WorkerPort {
 public:
  virtual ~WorkerPort() = default;
  virtual ConnectionId Dial(Worker* worker) = 0;
  virtual void FromWorker(ConnectionId connection,
                          std::unique_ptr<internal::WorkerMessage> message) = 0;
  // The connection is over for the worker. `noticed`: for the coordinator too.
  virtual void HangUp(ConnectionId connection, bool noticed) = 0;
  // Whatever is under way, or comes now, arrives in `us` at the earliest.
  virtual void Hold(ConnectionId connection, int64_t us) = 0;
  // The worker is about to do something: a fault may wait for it.
  virtual void AtPhase(Worker* worker, Phase phase) = 0;
};

class Worker {
 public:
  struct Options {
    uint32_t number = 0;
    uint32_t cache_blocks = 0;         // that fit
    std::vector<uint32_t> bad_blocks;  // of its memory
    int64_t load_us = 0, step_us = 0;
    CacheModel::Shape shape;  // block_tokens, max_slots, max_step_tokens
  };

  Worker(Options options, World* world, WorkerPort* port, Switchboard* switchboard);

  void Start();
  void Suffer(const Fault& fault);

  // From the coordinator; of connections that are over nothing is taken.
  void OnMessage(ConnectionId connection, const ToWorker& message);
  void OnStreamEnd(ConnectionId connection);

  uint32_t number() const { return options_.number; }

 private:
  enum class EpochState { kNone, kJoined, kRunning, kFailed };
  struct Task {
    enum class Kind { kAssign, kJoin, kAllocate, kPlan, kEnd } kind;
    ConnectionId connection;
    ToWorker message;  // not of kEnd
    uint64_t epoch = 0;
    bool report = false;
  };

  // `action` in `us`, if the process lives until then; later when it is frozen then.
  void After(int64_t us, std::function<void()> action);
  // Likewise, and only if the step thread is still at what it does now.
  void AfterWork(int64_t us, std::function<void()> action);
  void Die(bool noticed, int64_t back_after_us);
  void Dial();
  void Redial();
  void Beat(ConnectionId connection);
  void Handle(const ToWorker& message);

  void Push(Task task);
  void End(uint64_t epoch, bool report);
  void NextTask();
  void TaskDone();
  void DoAssign(const Task& task);
  void DoJoin(const Task& task);
  void DoAllocate(const Task& task);
  void DoPlan(const Task& task);
  void DoEnd(const Task& task);
  void LeaveEpoch();
  void FailEpoch(ConnectionId connection, absl::StatusCode code, uint64_t epoch);

  std::unique_ptr<internal::WorkerMessage> Message() const {
    return std::make_unique<internal::WorkerMessage>();
  }
  // To the connection that asked; dropped when it is over.
  void Send(ConnectionId connection, std::unique_ptr<internal::WorkerMessage> message);
  void SendFailure(ConnectionId connection, absl::StatusCode code, uint64_t epoch, bool fatal);
  std::string Name() const;

  const Options options_;
  World* const world_;
  WorkerPort* const port_;
  Switchboard* const switchboard_;

  uint64_t life_ = 0;  // which process it is
  bool alive_ = false;
  bool frozen_ = false;
  std::vector<std::function<void()>> frozen_actions_;

  // The control stream.
  ConnectionId connection_ = 0;  // 0: none
  int64_t last_heard_ = 0, backoff_us_ = 0;
  uint64_t term_ = 0;
  bool assigned_ = false;  // on this stream
  uint64_t stream_epoch_ = 0;

  // The step thread.
  std::deque<Task> tasks_;
  bool working_ = false;
  Task::Kind work_ = Task::Kind::kEnd;  // while working
  uint64_t ticket_ = 0;                 // of the work; another one when it is called off
  std::string held_digest_;
  uint32_t held_rank_ = 0;
  bool bound_ = false;
  uint32_t rank_ = 0, ranks_ = 0;
  EpochState epoch_state_ = EpochState::kNone;
  uint64_t epoch_ = 0, told_epoch_ = 0;  // told: in heartbeats
  std::shared_ptr<Communicator> communicator_;
  uint64_t step_ = 0, last_step_ = 0;
  bool busy_ = false;

  // Faults that wait.
  int64_t slow_until_ = 0, babbles_until_ = 0, no_rest_us_ = 0;
  bool hangs_ = false, forgets_ = false, load_fails_ = false;
};

}  // namespace bitshard::sim
