#include "worker/service/worker_service.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include "kernels/base/log.h"
#include "proto/message_limits.h"

namespace bitshard {
namespace {

// Silence is measured on a clock that nobody sets.
int64_t MonotonicNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// How long a leaving worker waits for its last message to be taken.
constexpr absl::Duration kFarewell = absl::Milliseconds(500);
// Between two lines that say that no coordinator answers.
constexpr int64_t kTellAgainNs = 60'000'000'000;

std::shared_ptr<grpc::Channel> Dial(const std::string& target,
                                    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxFleetMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxFleetMessageBytes);
  // Back-off is ours: a new dial is a new connection, not one that waits for gRPC's own timer.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(target, credentials, arguments);
}

}  // namespace

WorkerService::WorkerService(Options options, WorkerBackend backend, WorkerMetrics* metrics)
    : options_(std::move(options)),
      measure_memory_(backend.measure_memory),
      last_heard_ns_(MonotonicNanos()),
      step_thread_(
          std::move(backend), options_.registration.memory_bytes(),
          [this](uint64_t session, internal::WorkerMessage message) {
            SendFromStepThread(session, std::move(message));
          },
          metrics) {}

WorkerService::~WorkerService() = default;

void WorkerService::Leave(std::string reason) {
  Event event;
  event.kind = Event::Kind::kLeave;
  event.reason = std::move(reason);
  Post(std::move(event));
}

void WorkerService::Post(Event event) {
  absl::MutexLock lock(&mu_);
  events_.push_back(std::move(event));
}

std::optional<WorkerService::Event> WorkerService::NextEvent(absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !events_.empty(); };
  if (!mu_.AwaitWithTimeout(absl::Condition(&ready), timeout)) return std::nullopt;
  Event event = std::move(events_.front());
  events_.pop_front();
  return event;
}

void WorkerService::SendFromStepThread(uint64_t session, internal::WorkerMessage message) {
  absl::MutexLock lock(&stream_mu_);
  if (stream_ != nullptr && stream_session_ == session) stream_->Send(std::move(message));
}

absl::Status WorkerService::Run() {
  const int64_t timeout_ns = absl::ToInt64Nanoseconds(options_.coordinator_timeout);  // saturates
  absl::Duration backoff = options_.first_backoff;
  last_heard_ns_ = MonotonicNanos();
  while (true) {
    const int64_t dialled_ns = MonotonicNanos();
    const Verdict verdict = ServeOneStream();
    if (verdict == Verdict::kExit) return turned_away_;
    const int64_t heard_ns = last_heard_ns_;
    if (heard_ns > dialled_ns) backoff = options_.first_backoff;
    if (MonotonicNanos() - heard_ns >= timeout_ns) {
      return absl::UnavailableError(
          absl::StrCat("heard nothing from the coordinator at ", options_.coordinator, " for ",
                       absl::FormatDuration(options_.coordinator_timeout),
                       "; is it running, and is --coordinator its fleet port?"));
    }
    const int64_t redial_ns = MonotonicNanos() + absl::ToInt64Nanoseconds(backoff);
    backoff = std::min(backoff * 1.6, options_.max_backoff);
    while (std::optional<Event> event =
               NextEvent(absl::Nanoseconds(redial_ns - MonotonicNanos()))) {
      if (event->kind == Event::Kind::kLeave) return absl::OkStatus();
    }
  }
}

WorkerService::Verdict WorkerService::ServeOneStream() {
  const uint64_t session = ++session_;
  assigned_ = false;
  epoch_ = 0;
  FleetStream::Callbacks callbacks;
  callbacks.on_message = [this, session](std::unique_ptr<internal::CoordinatorMessage> message) {
    last_heard_ns_ = MonotonicNanos();
    if (message->has_step_plan()) {
      step_thread_.Run(session, std::unique_ptr<internal::StepPlan>(message->release_step_plan()));
      return;
    }
    Event event;
    event.session = session;
    event.message = std::move(message);
    Post(std::move(event));
  };
  callbacks.on_end = [this, session](const absl::Status& status) {
    Event event;
    event.kind = Event::Kind::kStreamEnd;
    event.session = session;
    event.status = status;
    Post(std::move(event));
  };
  const int64_t begin_ns = MonotonicNanos();
  {
    auto stream =
        std::make_unique<FleetStream>(Dial(options_.coordinator, options_.credentials),
                                      options_.registration.token(), std::move(callbacks));
    stream->Send(Registration());
    absl::MutexLock lock(&stream_mu_);
    stream_ = std::move(stream);
    stream_session_ = session;
  }

  const int64_t period_ns = absl::ToInt64Nanoseconds(options_.heartbeat_period);
  const int64_t silence_ns = absl::ToInt64Nanoseconds(options_.silence_limit);
  Verdict verdict = Verdict::kGoOn;
  int64_t beat_ns = begin_ns + period_ns;
  const int64_t memory_period_ns = absl::ToInt64Nanoseconds(options_.memory_period);
  int64_t memory_ns = begin_ns + memory_period_ns;
  // Aside, for the page tables of a large process take a while and heartbeats must not wait.
  std::future<internal::MemoryReport> measuring;
  while (verdict == Verdict::kGoOn) {
    if (std::optional<Event> event = NextEvent(absl::Nanoseconds(beat_ns - MonotonicNanos()))) {
      verdict = Handle(*std::move(event));
    }
    const int64_t now_ns = MonotonicNanos();
    if (verdict != Verdict::kGoOn || now_ns < beat_ns) continue;
    SendHeartbeat();
    beat_ns = now_ns + period_ns;
    if (measuring.valid()) {
      if (measuring.wait_for(std::chrono::seconds(0)) == std::future_status::ready)
        SendMemoryReport(measuring.get());
    } else if (now_ns >= memory_ns && measure_memory_ && epoch_ != 0) {
      measuring = std::async(std::launch::async, measure_memory_);
      memory_ns = now_ns + memory_period_ns;
    }
    if (now_ns - std::max<int64_t>(begin_ns, last_heard_ns_) >= silence_ns) {
      LogWarning("worker: coordinator={} silent for {}: dialling again", options_.coordinator,
                 absl::FormatDuration(options_.silence_limit));
      verdict = Verdict::kRedial;
    }
  }

  // The epoch ends with its stream: whoever waits in a collective comes out, and a new coordinator
  // finds no old cache.
  step_thread_.End(session, epoch_, /*report=*/false);
  std::unique_ptr<FleetStream> stream;
  {
    absl::MutexLock lock(&stream_mu_);
    stream = std::move(stream_);
  }
  return verdict;  // the stream's destructor waits for its last callback
}

WorkerService::Verdict WorkerService::Handle(Event event) {
  switch (event.kind) {
    case Event::Kind::kLeave: {
      internal::WorkerMessage message;
      message.mutable_leaving()->set_reason(event.reason);
      absl::MutexLock lock(&stream_mu_);
      stream_->Send(std::move(message));
      stream_->Finish(kFarewell);
      return Verdict::kExit;
    }
    case Event::Kind::kStreamEnd:
      if (event.session != session_) return Verdict::kGoOn;
      if (absl::IsPermissionDenied(event.status)) {  // it would not do the next time either
        turned_away_ = absl::PermissionDeniedError(
            absl::StrCat("turned away by ", options_.coordinator, ": ", event.status.message()));
        return Verdict::kExit;
      }
      TellOfStreamEnd(event.status);
      return Verdict::kRedial;
    case Event::Kind::kMessage:
      if (event.session != session_) return Verdict::kGoOn;
      return HandleMessage(*event.message);
  }
  return Verdict::kGoOn;
}

void WorkerService::TellOfStreamEnd(const absl::Status& status) {
  const int64_t now_ns = MonotonicNanos();
  const bool other_service = absl::IsUnimplemented(status);
  if ((other_service || now_ns - last_heard_ns_ >= kTellAgainNs) &&
      (told_ns_ == 0 || now_ns - told_ns_ >= kTellAgainNs)) {
    told_ns_ = now_ns;
    LogWarning("worker: no coordinator at {} yet: {}; {}", options_.coordinator, status.ToString(),
               other_service ? "is that its fleet port (50052), and not the public one?"
                             : "is it running, and is --coordinator its fleet port?");
  } else if (assigned_ || session_ == 1) {  // not at every dial while nobody answers
    LogInfo("worker: control stream to {} ended: {}", options_.coordinator, status.ToString());
  }
}

WorkerService::Verdict WorkerService::HandleMessage(internal::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case internal::CoordinatorMessage::kAssign:
      HandleAssign(std::unique_ptr<internal::Assign>(message.release_assign()));
      break;
    case internal::CoordinatorMessage::kJoinCommunicator:
      HandleJoin(message.join_communicator());
      break;
    case internal::CoordinatorMessage::kRendezvousOfAll:
      if (assigned_ && message.rendezvous_of_all().epoch() == epoch_)
        step_thread_.Told(message.rendezvous_of_all());
      break;
    case internal::CoordinatorMessage::kAllocateCache:
      step_thread_.Allocate(session_, message.allocate_cache());
      break;
    case internal::CoordinatorMessage::kEndEpoch:
      if (!assigned_ || message.end_epoch().term() != term_) {
        SendFailure(absl::FailedPreconditionError(
                        absl::StrCat("EndEpoch of term ", message.end_epoch().term(),
                                     ", but this worker is in term ", assigned_ ? term_ : 0)),
                    message.end_epoch().epoch());
        break;
      }
      step_thread_.End(session_, message.end_epoch().epoch(), /*report=*/true);
      break;
    case internal::CoordinatorMessage::kRelease:
      if (message.release().exit()) {
        turned_away_ = absl::PermissionDeniedError(absl::StrCat(
            "turned away by ", options_.coordinator, ": ", message.release().reason()));
        return Verdict::kExit;
      }
      LogInfo("worker: released by the coordinator: {}", message.release().reason());
      step_thread_.End(session_, epoch_, /*report=*/false);
      return Verdict::kRedial;
    case internal::CoordinatorMessage::kHeartbeat:
    case internal::CoordinatorMessage::kStepPlan:  // the reading thread handed it on
    case internal::CoordinatorMessage::BODY_NOT_SET:
      break;
  }
  return Verdict::kGoOn;
}

void WorkerService::HandleAssign(std::unique_ptr<internal::Assign> assign) {
  if (assign->term() <= term_) {
    // Not this term's coordinator any more, or not yet: only a term above every earlier one owns
    // this worker.
    SendFailure(absl::FailedPreconditionError(absl::StrCat(
                    "assigned in term ", assign->term(), ", but this worker has accepted term ",
                    term_, "; register it again and use a higher one")),
                /*epoch=*/0);
    return;
  }
  term_ = assign->term();
  epoch_ = 0;
  assigned_ = true;
  LogInfo("worker: assigned rank={} world={} term={} plan={}", assign->rank(), assign->world(),
          term_, assign->plan().digest().substr(0, 12));
  step_thread_.End(session_, /*epoch=*/0, /*report=*/false);
  step_thread_.Assign(session_, std::move(assign));
}

void WorkerService::HandleJoin(const internal::JoinCommunicator& join) {
  if (!assigned_ || join.term() != term_ || join.epoch() <= epoch_) {
    SendFailure(absl::FailedPreconditionError(absl::StrCat(
                    "JoinCommunicator of term ", join.term(), " epoch ", join.epoch(),
                    ", but this worker is in term ", assigned_ ? term_ : 0, " epoch ", epoch_)),
                join.epoch());
    return;
  }
  epoch_ = join.epoch();
  step_thread_.Join(session_, join);
}

internal::WorkerMessage WorkerService::Registration() const {
  internal::WorkerMessage message;
  internal::Register& out = *message.mutable_registration();
  out = options_.registration;
  out.set_term(term_);
  const StepThread::Held held = step_thread_.held();
  out.set_plan_digest(held.plan_digest);
  out.set_held_rank(held.rank);
  return message;
}

void WorkerService::SendHeartbeat() {
  internal::WorkerMessage message;
  internal::Heartbeat& heartbeat = *message.mutable_heartbeat();
  heartbeat.set_term(term_);
  step_thread_.FillHeartbeat(heartbeat);
  absl::MutexLock lock(&stream_mu_);
  stream_->Send(std::move(message));
}

void WorkerService::SendMemoryReport(internal::MemoryReport report) {
  internal::WorkerMessage message;
  *message.mutable_memory_report() = std::move(report);
  absl::MutexLock lock(&stream_mu_);
  stream_->Send(std::move(message));
}

void WorkerService::SendFailure(const absl::Status& status, uint64_t epoch) {
  LogWarning("worker: {}", status.ToString());
  internal::WorkerMessage message;
  internal::Failure& failure = *message.mutable_failure();
  failure.set_code(static_cast<uint32_t>(status.code()));
  failure.set_message(std::string(status.message()));
  failure.set_epoch(epoch);
  absl::MutexLock lock(&stream_mu_);
  stream_->Send(std::move(message));
}

}  // namespace bitshard
