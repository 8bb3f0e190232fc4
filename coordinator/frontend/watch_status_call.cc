#include "coordinator/frontend/watch_status_call.h"

#include <utility>

#include "coordinator/frontend/wire.h"

namespace bitshard {

grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchStatusCall::Start(const AdminSources* sources,
                                                                   absl::Duration interval) {
  auto call = std::make_shared<WatchStatusCall>(sources, interval);
  WatchStatusCall* raw = call.get();
  raw->self_ = call;
  sources->writer->Wake(std::move(call));
  return raw;
}

bool WatchStatusCall::Pump(absl::Time now) {
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return false;
    if (writing_ || now < next_) return true;
    writing_ = true;
    next_ = now + interval_;
  }
  v1::WatchStatusResponse response;
  FillStatus(*sources_, response.mutable_status());
  current_ = Serialize(response);
  StartWrite(&current_);
  return true;
}

void WatchStatusCall::OnWriteDone(bool) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
}

void WatchStatusCall::OnCancel() {
  absl::MutexLock lock(&mu_);
  if (std::exchange(finished_, true)) return;
  Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the watcher has gone, or the service ends"));
}

}  // namespace bitshard
