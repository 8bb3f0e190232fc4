#include "tests/coordinator/simulator/worker.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"

namespace bitshard::sim {
namespace {

constexpr int64_t kHeartbeat = 250 * kMillisecond, kSilence = 3 * kSecond;
constexpr int64_t kFirstBackoff = 50 * kMillisecond, kMostBackoff = kSecond;

}  // namespace

Worker::Worker(Options options, World* world, WorkerPort* port, Switchboard* switchboard)
    : options_(std::move(options)), world_(world), port_(port), switchboard_(switchboard) {}

std::string Worker::Name() const { return absl::StrCat("worker ", options_.number); }

void Worker::After(int64_t us, std::function<void()> action) {
  world_->events.After(us, [this, life = life_, action = std::move(action)] {
    if (life != life_ || !alive_) return;
    if (frozen_) {
      frozen_actions_.push_back(action);
      return;
    }
    action();
  });
}

void Worker::AfterWork(int64_t us, std::function<void()> action) {
  After(us, [this, ticket = ticket_, action = std::move(action)] {
    if (ticket == ticket_) action();
  });
}

// --- the process and its faults

void Worker::Start() {
  ++life_;
  alive_ = true;
  backoff_us_ = kFirstBackoff;
  world_->Note([&] { return absl::StrCat(Name(), " starts"); });
  After(world_->dice.Between(0, 20 * kMillisecond), [this] { Dial(); });
}

void Worker::Die(bool noticed, int64_t back_after_us) {
  if (!alive_) return;
  if (connection_ != 0) port_->HangUp(std::exchange(connection_, 0), noticed);
  if (communicator_ != nullptr) communicator_->Leave(rank_);
  alive_ = frozen_ = working_ = bound_ = busy_ = assigned_ = false;
  ++ticket_;
  ++life_;
  frozen_actions_.clear();
  tasks_.clear();
  communicator_.reset();
  epoch_state_ = EpochState::kNone;
  held_digest_.clear();
  term_ = told_epoch_ = step_ = last_step_ = 0;
  hangs_ = forgets_ = load_fails_ = false;
  no_rest_us_ = slow_until_ = babbles_until_ = 0;
  world_->events.After(back_after_us, [this] { Start(); });
}

void Worker::Suffer(const Fault& fault) {
  if (!alive_) return;
  world_->Note([&] { return absl::StrCat(Name(), " fault: ", sim::Name(fault.kind)); });
  const int64_t now = world_->events.now();
  switch (fault.kind) {
    case FaultKind::kKill:
    case FaultKind::kVanish:
      Die(/*noticed=*/fault.kind == FaultKind::kKill, fault.lasts_us);
      break;
    case FaultKind::kFreeze:
      if (std::exchange(frozen_, true)) break;
      world_->events.After(fault.lasts_us, [this, life = life_] {
        if (life != life_) return;
        frozen_ = false;
        world_->Note([&] { return absl::StrCat(Name(), " goes on"); });
        const auto actions = std::exchange(frozen_actions_, {});
        for (const auto& action : actions) {
          if (life == life_ && alive_) action();
        }
      });
      break;
    case FaultKind::kSlow:
      slow_until_ = now + fault.lasts_us;
      break;
    case FaultKind::kHang:
      hangs_ = true;
      break;
    case FaultKind::kReset:
      if (connection_ == 0) break;
      port_->HangUp(connection_, /*noticed=*/true);
      Redial();
      break;
    case FaultKind::kCut:
      if (connection_ != 0) port_->Hold(connection_, fault.lasts_us);
      break;
    case FaultKind::kLeave:
      if (connection_ != 0) {
        auto message = Message();
        message->mutable_leaving()->set_reason("told to");
        Send(connection_, std::move(message));
      }
      Die(/*noticed=*/true, fault.lasts_us);
      break;
    case FaultKind::kBreak:
      if (communicator_ == nullptr) break;
      FailEpoch(connection_, absl::StatusCode::kUnavailable, epoch_);
      break;
    case FaultKind::kFail:
      if (communicator_ == nullptr) break;
      FailEpoch(connection_, absl::StatusCode::kInternal, epoch_);
      break;
    case FaultKind::kFatal:
      SendFailure(connection_, absl::StatusCode::kInternal, epoch_, /*fatal=*/true);
      break;
    case FaultKind::kNoRest:
      no_rest_us_ = fault.lasts_us;
      break;
    case FaultKind::kForget:
      forgets_ = true;
      break;
    case FaultKind::kLoadFails:
      load_fails_ = true;
      break;
    case FaultKind::kBabble:
      babbles_until_ = now + fault.lasts_us;
      break;
  }
}

// --- the control stream

void Worker::Dial() {
  if (connection_ != 0) return;
  port_->AtPhase(this, Phase::kRegister);
  connection_ = port_->Dial(this);
  last_heard_ = world_->events.now();
  assigned_ = false;
  stream_epoch_ = 0;
  auto message = Message();
  internal::Register& out = *message->mutable_registration();
  out.set_instance(absl::StrCat(options_.number, ".", life_));
  out.set_protocol_min(1);
  out.set_protocol_max(1);
  out.set_build("simulated");
  out.set_host("host");
  out.set_pid(static_cast<int64_t>(100 * options_.number + life_));
  out.set_local_rank(options_.number);
  out.set_term(term_);
  out.set_plan_digest(held_digest_);
  out.set_held_rank(held_rank_);
  Send(connection_, std::move(message));
  After(kHeartbeat, [this, connection = connection_] { Beat(connection); });
}

void Worker::Redial() {
  connection_ = 0;
  End(stream_epoch_, /*report=*/false);
  const int64_t wait = backoff_us_;
  backoff_us_ = std::min(backoff_us_ * 8 / 5, kMostBackoff);
  After(wait, [this] { Dial(); });
}

void Worker::Beat(ConnectionId connection) {
  if (connection != connection_) return;
  auto message = Message();
  internal::Heartbeat& beat = *message->mutable_heartbeat();
  beat.set_term(term_);
  beat.set_epoch(told_epoch_);
  beat.set_step(step_);
  beat.set_op(busy_ ? 5 : 9);
  beat.set_busy(busy_);
  int64_t next = kHeartbeat;
  if (world_->events.now() < babbles_until_) {
    Send(connection, std::make_unique<internal::WorkerMessage>(*message));
    next = world_->dice.Between(10 * kMillisecond, 4 * kHeartbeat);
  }
  Send(connection, std::move(message));
  if (world_->events.now() - last_heard_ >= kSilence) {
    world_->Note([&] { return absl::StrCat(Name(), " hears nothing and dials again"); });
    port_->HangUp(connection, /*noticed=*/world_->dice.Percent(50));
    Redial();
    return;
  }
  After(next, [this, connection] { Beat(connection); });
}

void Worker::OnMessage(ConnectionId connection, const ToWorker& message) {
  After(0, [this, connection, message] {
    if (connection != connection_) return;
    last_heard_ = world_->events.now();
    backoff_us_ = kFirstBackoff;
    Handle(message);
  });
}

void Worker::OnStreamEnd(ConnectionId connection) {
  After(0, [this, connection] {
    if (connection == connection_) Redial();
  });
}

void Worker::Handle(const ToWorker& message) {
  switch (message->body_case()) {
    case internal::CoordinatorMessage::kAssign:
      if (message->assign().term() <= term_) {
        SendFailure(connection_, absl::StatusCode::kFailedPrecondition, 0, /*fatal=*/false);
        break;
      }
      term_ = message->assign().term();
      stream_epoch_ = 0;
      assigned_ = true;
      End(/*epoch=*/0, /*report=*/false);
      Push({.kind = Task::Kind::kAssign, .connection = connection_, .message = message});
      break;
    case internal::CoordinatorMessage::kJoinCommunicator: {
      const internal::JoinCommunicator& join = message->join_communicator();
      if (!assigned_ || join.term() != term_ || join.epoch() <= stream_epoch_) {
        SendFailure(connection_, absl::StatusCode::kFailedPrecondition, join.epoch(),
                    /*fatal=*/false);
        break;
      }
      stream_epoch_ = join.epoch();
      Push({.kind = Task::Kind::kJoin, .connection = connection_, .message = message});
      break;
    }
    case internal::CoordinatorMessage::kAllocateCache:
      Push({.kind = Task::Kind::kAllocate, .connection = connection_, .message = message});
      break;
    case internal::CoordinatorMessage::kStepPlan:
      Push({.kind = Task::Kind::kPlan, .connection = connection_, .message = message});
      break;
    case internal::CoordinatorMessage::kEndEpoch:
      if (!assigned_ || message->end_epoch().term() != term_) {
        SendFailure(connection_, absl::StatusCode::kFailedPrecondition,
                    message->end_epoch().epoch(), /*fatal=*/false);
        break;
      }
      End(message->end_epoch().epoch(), /*report=*/true);
      break;
    case internal::CoordinatorMessage::kRelease:
      // One that says exit would be started again.
      port_->HangUp(connection_, /*noticed=*/true);
      Redial();
      break;
    default:
      break;
  }
}

void Worker::Send(ConnectionId connection, std::unique_ptr<internal::WorkerMessage> message) {
  if (connection == connection_ && connection != 0)
    port_->FromWorker(connection, std::move(message));
}

void Worker::SendFailure(ConnectionId connection, absl::StatusCode code, uint64_t epoch,
                         bool fatal) {
  auto message = Message();
  internal::Failure& failure = *message->mutable_failure();
  failure.set_code(static_cast<uint32_t>(code));
  failure.set_message("simulated");
  failure.set_epoch(epoch);
  failure.set_fatal(fatal);
  Send(connection, std::move(message));
}

// --- the step thread

void Worker::Push(Task task) {
  tasks_.push_back(std::move(task));
  NextTask();
}

void Worker::End(uint64_t epoch, bool report) {
  std::erase_if(tasks_, [](const Task& task) {
    return task.kind != Task::Kind::kAssign && task.kind != Task::Kind::kEnd;
  });
  if (working_ && work_ != Task::Kind::kAssign && work_ != Task::Kind::kEnd) {
    ++ticket_;
    working_ = false;
  }
  if (communicator_ != nullptr) communicator_->Leave(rank_);
  Push({.kind = Task::Kind::kEnd,
        .connection = connection_,
        .message = nullptr,
        .epoch = epoch,
        .report = report});
}

void Worker::NextTask() {
  if (working_ || tasks_.empty()) return;
  const Task task = std::move(tasks_.front());
  tasks_.pop_front();
  working_ = true;
  work_ = task.kind;
  ++ticket_;
  switch (task.kind) {
    case Task::Kind::kAssign:
      return DoAssign(task);
    case Task::Kind::kJoin:
      return DoJoin(task);
    case Task::Kind::kAllocate:
      return DoAllocate(task);
    case Task::Kind::kPlan:
      return DoPlan(task);
    case Task::Kind::kEnd:
      return DoEnd(task);
  }
}

void Worker::TaskDone() {
  working_ = busy_ = false;
  NextTask();
}

void Worker::DoAssign(const Task& task) {
  LeaveEpoch();
  port_->AtPhase(this, Phase::kLoad);
  const internal::Assign& assign = task.message->assign();
  const bool held = held_digest_ == assign.plan().digest() && held_rank_ == assign.rank();
  bound_ = false;
  if (!held) held_digest_.clear();
  AfterWork(held ? kMillisecond : options_.load_us, [this, task] {
    if (std::exchange(load_fails_, false)) {
      SendFailure(task.connection, absl::StatusCode::kInternal, 0, /*fatal=*/false);
      return TaskDone();
    }
    const internal::Assign& assign = task.message->assign();
    held_digest_ = assign.plan().digest();
    held_rank_ = rank_ = assign.rank();
    ranks_ = assign.world();
    bound_ = true;
    auto message = Message();
    message->mutable_loaded()->set_max_cache_blocks(options_.cache_blocks);
    Send(task.connection, std::move(message));
    TaskDone();
  });
}

void Worker::DoJoin(const Task& task) {
  LeaveEpoch();
  port_->AtPhase(this, Phase::kJoin);
  const internal::JoinCommunicator& join = task.message->join_communicator();
  epoch_ = join.epoch();
  if (!bound_) {
    FailEpoch(task.connection, absl::StatusCode::kFailedPrecondition, epoch_);
    return TaskDone();
  }
  communicator_ = switchboard_->Find(join.id(), ranks_);
  communicator_->Meet(
      rank_, nullptr, world_->dice.Between(100, 5 * kMillisecond),
      [this, life = life_, ticket = ticket_, task](bool ok, const internal::StepResult*) {
        if (life != life_) return;
        After(0, [this, ticket, task, ok] {
          if (ticket != ticket_) return;
          if (!ok) {
            FailEpoch(task.connection, absl::StatusCode::kUnavailable, epoch_);
            return TaskDone();
          }
          epoch_state_ = EpochState::kJoined;
          auto message = Message();
          message->mutable_joined()->set_epoch(epoch_);
          Send(task.connection, std::move(message));
          TaskDone();
        });
      });
}

void Worker::DoAllocate(const Task& task) {
  port_->AtPhase(this, Phase::kAllocate);
  const internal::AllocateCache& allocate = task.message->allocate_cache();
  if (epoch_state_ != EpochState::kJoined || allocate.epoch() != epoch_) {
    FailEpoch(task.connection, absl::StatusCode::kFailedPrecondition, allocate.epoch());
    return TaskDone();
  }
  AfterWork(world_->dice.Between(100, 3 * kMillisecond), [this, task] {
    const internal::AllocateCache& allocate = task.message->allocate_cache();
    CacheModel::Shape shape = options_.shape;
    shape.term = term_;
    shape.epoch = epoch_;
    shape.blocks = allocate.blocks();
    communicator_->Allocate(shape, options_.bad_blocks);
    epoch_state_ = EpochState::kRunning;
    told_epoch_ = epoch_;
    auto message = Message();
    message->mutable_ready()->set_epoch(epoch_);
    Send(task.connection, std::move(message));
    TaskDone();
  });
}

void Worker::DoPlan(const Task& task) {
  port_->AtPhase(this, Phase::kStep);
  const internal::StepPlan& plan = task.message->step_plan();
  if (epoch_state_ == EpochState::kFailed && plan.epoch() == epoch_) return TaskDone();
  if (epoch_state_ != EpochState::kRunning || plan.epoch() != epoch_ ||
      plan.step() != last_step_ + 1) {
    world_->Fail(absl::StrCat(Name(), " is to run step ", plan.step(), " of epoch ", plan.epoch(),
                              " after step ", last_step_, " of epoch ", epoch_));
    return;
  }
  step_ = plan.step();
  busy_ = true;
  if (std::exchange(hangs_, false)) return;  // until the end of the epoch
  int64_t takes = world_->dice.Between(options_.step_us / 2, options_.step_us * 2);
  if (world_->events.now() < slow_until_) takes *= 12;
  communicator_->Meet(
      rank_, task.message, takes,
      [this, life = life_, ticket = ticket_, task](bool ok, const internal::StepResult* result) {
        if (life != life_ || ticket != ticket_) return;
        std::unique_ptr<internal::WorkerMessage> message;
        if (ok && rank_ == 0) {
          message = Message();
          *message->mutable_step_result() = *result;
          message->mutable_step_result()->set_exec_us(static_cast<uint64_t>(options_.step_us));
        }
        const auto finish = [this, ticket, task, ok](const internal::WorkerMessage* answer) {
          if (ticket != ticket_) return;
          if (!ok) {
            FailEpoch(task.connection, absl::StatusCode::kUnavailable, epoch_);
            return TaskDone();
          }
          last_step_ = step_;
          if (answer != nullptr) {
            Send(task.connection, std::make_unique<internal::WorkerMessage>(*answer));
            if (world_->events.now() < babbles_until_)
              Send(task.connection, std::make_unique<internal::WorkerMessage>(*answer));
          }
          TaskDone();
        };
        if (!frozen_) return finish(message.get());
        frozen_actions_.push_back([finish, kept = std::shared_ptr<internal::WorkerMessage>(
                                               std::move(message))] { finish(kept.get()); });
      });
}

void Worker::DoEnd(const Task& task) {
  port_->AtPhase(this, Phase::kEnd);
  LeaveEpoch();
  int64_t takes = world_->dice.Between(100, 5 * kMillisecond);
  if (no_rest_us_ > 0) takes = std::exchange(no_rest_us_, 0);
  AfterWork(takes, [this, task] {
    if (task.report) {
      const bool forgets = std::exchange(forgets_, false);
      if (forgets) held_digest_.clear();
      auto message = Message();
      message->mutable_quiesced()->set_epoch(task.epoch);
      message->mutable_quiesced()->set_weights_intact(!forgets);
      Send(task.connection, std::move(message));
    }
    TaskDone();
  });
}

void Worker::LeaveEpoch() {
  if (communicator_ != nullptr) communicator_->Leave(rank_);
  communicator_.reset();
  epoch_state_ = EpochState::kNone;
  told_epoch_ = step_ = last_step_ = 0;
  busy_ = false;
}

void Worker::FailEpoch(ConnectionId connection, absl::StatusCode code, uint64_t epoch) {
  if (communicator_ != nullptr) communicator_->Leave(rank_);
  if (epoch == epoch_) epoch_state_ = EpochState::kFailed;
  SendFailure(connection, code, epoch, /*fatal=*/false);
}

}  // namespace bitshard::sim
