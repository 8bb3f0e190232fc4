#include "coordinator/fleet/fleet.h"

#include <utility>

#include "absl/time/clock.h"

#include "kernels/base/check.h"
#include "kernels/base/monotonic_time.h"

namespace bitshard {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
// For the workers to take their Release.
constexpr absl::Duration kFarewell = absl::Milliseconds(500);

}  // namespace

WorkerFleet::WorkerFleet(Options options)
    : on_hopeless_(std::move(options.on_hopeless)), group_(std::move(options.group), this) {}

absl::StatusOr<std::unique_ptr<WorkerFleet>> WorkerFleet::Listen(Options options) {
  const std::string host = options.host;
  const int port = options.port;
  const std::string token = options.group.token;
  std::shared_ptr<grpc::ServerCredentials> credentials =
      options.credentials != nullptr ? options.credentials : grpc::InsecureServerCredentials();
  std::unique_ptr<WorkerFleet> fleet(new WorkerFleet(std::move(options)));
  auto transport = FleetTransport::Listen(host, port, std::move(credentials), token, fleet.get());
  if (!transport.ok()) {
    fleet->stopped_ = true;
    return transport.status();
  }
  fleet->transport_ = *std::move(transport);
  return fleet;
}

WorkerFleet::~WorkerFleet() { Stop(); }

void WorkerFleet::Start(StepListener* listener) {
  {
    absl::MutexLock lock(&mu_);
    CHECK(listener_ == nullptr) << "started twice";
    listener_ = listener;
  }
  ticker_ = std::thread([this] { TickLoop(); });
  transport_->Accept();
}

void WorkerFleet::TickLoop() {
  while (true) {
    // Not AwaitWithTimeout: it counts on the wall clock, which may be set back by hours.
    absl::SleepFor(kTick);
    absl::MutexLock lock(&mu_);
    if (stopping_) return;
    group_.Tick(MonotonicNow());
  }
}

void WorkerFleet::Stop() {
  if (std::exchange(stopped_, true)) return;
  {
    absl::MutexLock lock(&mu_);
    listener_ = nullptr;
    stopping_ = true;
    group_.Release("the coordinator stops", /*exit=*/false);
  }
  if (ticker_.joinable()) ticker_.join();
  transport_->Shutdown(kFarewell);
}

void WorkerFleet::Submit(std::unique_ptr<internal::StepPlan> plan) {
  absl::MutexLock lock(&mu_);
  group_.SubmitPlan(std::move(plan), MonotonicNow());
}

GroupSnapshot WorkerFleet::Snapshot() const {
  absl::MutexLock lock(&mu_);
  return group_.Snapshot(MonotonicNow());
}

void WorkerFleet::OnOpened(ConnectionId connection) {
  absl::MutexLock lock(&mu_);
  group_.Connected(connection, MonotonicNow());
}

void WorkerFleet::OnMessage(ConnectionId connection,
                            std::unique_ptr<internal::WorkerMessage> message) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return;
  group_.Received(connection, std::move(message), MonotonicNow());
}

void WorkerFleet::OnClosed(ConnectionId connection) {
  absl::MutexLock lock(&mu_);
  if (stopping_) return;
  group_.Disconnected(connection, MonotonicNow());
}

void WorkerFleet::Send(absl::Span<const ConnectionId> to,
                       const internal::CoordinatorMessage& message) {
  transport_->Send(to, message);
}

void WorkerFleet::Close(ConnectionId connection, const absl::Status& why) {
  transport_->Close(connection, why);
}

// Effects of the group: it is only called with mu_ held.
void WorkerFleet::OnGroupReady(const GroupInfo& info) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (listener_ != nullptr) listener_->OnGroupReady(info);
}
void WorkerFleet::OnStepDone(std::unique_ptr<internal::StepResult> result)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (listener_ != nullptr) listener_->OnStepDone(std::move(result));
}
void WorkerFleet::OnStepMoved() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (listener_ != nullptr) listener_->OnStepMoved();
}
void WorkerFleet::OnGroupLost(uint64_t term, uint64_t epoch,
                              const absl::Status& why) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  if (listener_ != nullptr) listener_->OnGroupLost(term, epoch, why);
}
void WorkerFleet::OnHopeless(const absl::Status& why) {
  if (on_hopeless_) on_hopeless_(why);
}

}  // namespace bitshard
