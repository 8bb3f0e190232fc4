#include "coordinator/frontend/health.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "coordinator/frontend/wire.h"
#include "proto/health.grpc.pb.h"

namespace bitshard {
namespace {

namespace health = grpc::health::v1;

health::HealthCheckResponse Response(std::optional<bool> serving) {
  health::HealthCheckResponse response;
  response.set_status(!serving.has_value() ? health::HealthCheckResponse::SERVICE_UNKNOWN
                      : *serving           ? health::HealthCheckResponse::SERVING
                                           : health::HealthCheckResponse::NOT_SERVING);
  return response;
}

// One Health.Watch. Sends the newest state; states that came and went during a write are skipped.
class WatchCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  WatchCall(HealthState* state, std::string service) : state_(state), service_(std::move(service)) {
    watch_id_ = state_->Watch([this] { Pump(); });
    Pump();
  }

 private:
  void Pump() {
    absl::MutexLock lock(&mu_);
    const std::optional<bool> serving = state_->Get(service_);
    if (writing_ || finished_ || (sent_ && *sent_ == serving)) return;
    sent_ = serving;
    writing_ = true;
    current_ = Serialize(Response(serving));
    StartWrite(&current_);
  }
  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mu_);
      writing_ = false;
      if (!ok) return;  // OnCancel comes
    }
    Pump();
  }
  void OnCancel() override {
    absl::MutexLock lock(&mu_);
    if (std::exchange(finished_, true)) return;
    Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the watcher has gone, or the service ends"));
  }
  void OnDone() override {
    state_->Unwatch(watch_id_);
    delete this;
  }

  HealthState* const state_;
  const std::string service_;
  uint64_t watch_id_ = 0;
  grpc::ByteBuffer current_;

  absl::Mutex mu_;
  std::optional<std::optional<bool>> sent_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

class RefusedWatch final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit RefusedWatch(grpc::Status status) { Finish(std::move(status)); }
  void OnDone() override { delete this; }
};

class HealthService final
    : public health::Health::WithRawCallbackMethod_Check<
          health::Health::WithRawCallbackMethod_Watch<health::Health::Service>> {
 public:
  explicit HealthService(HealthState* state) : state_(state) {}

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override {
    return AnswerUnary<health::HealthCheckRequest, health::HealthCheckResponse>(
        context, request, response, [this](const auto& check, auto* answer) {
          state_->Refresh();
          const std::optional<bool> serving = state_->Get(check.service());
          if (!serving) {
            return absl::NotFoundError(
                absl::StrCat("no service \"", absl::CHexEscape(check.service().substr(0, 64)),
                             "\"; there are \"\", readiness, startup, liveness"));
          }
          *answer = Response(serving);
          return absl::OkStatus();
        });
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Watch(grpc::CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override {
    health::HealthCheckRequest watch;
    const absl::Status status = ParseMessage(*request, &watch);
    if (!status.ok()) return new RefusedWatch(EndOfCall(context, status));
    state_->Refresh();
    return new WatchCall(state_, watch.service());
  }

 private:
  HealthState* const state_;
};

}  // namespace

void HealthState::SetRefresh(std::function<void()> refresh) {
  absl::MutexLock lock(&refresh_mu_);
  refresh_ = std::move(refresh);
}

void HealthState::Refresh() {
  absl::MutexLock lock(&refresh_mu_);
  if (refresh_) refresh_();
}

HealthState::HealthState() = default;

void HealthState::Set(bool value, bool* field) {
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(*field, value) == value) return;
  }
  absl::MutexLock lock(&watch_mu_);
  for (const auto& [id, changed] : watchers_) changed();
}

std::optional<bool> HealthState::Get(const std::string& service) const {
  absl::MutexLock lock(&mu_);
  if (service.empty() || service == "readiness") return ready_;
  if (service == "startup") return started_;
  if (service == "liveness") return alive_;
  return std::nullopt;
}

uint64_t HealthState::Watch(std::function<void()> changed) {
  absl::MutexLock lock(&watch_mu_);
  watchers_[++last_id_] = std::move(changed);
  return last_id_;
}

void HealthState::Unwatch(uint64_t id) {
  absl::MutexLock lock(&watch_mu_);
  watchers_.erase(id);
}

std::unique_ptr<grpc::Service> MakeHealthService(HealthState* state) {
  return std::make_unique<HealthService>(state);
}

}  // namespace bitshard
