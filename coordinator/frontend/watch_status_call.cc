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
  absl::MutexLock lock(&mu_);
  if (finished_) {  // the watcher went while the message was made
    FinishCancelled();
    return false;
  }
  StartWrite(&current_);
  return true;
}

void WatchStatusCall::OnWriteDone(bool) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  if (finished_) FinishCancelled();
}

void WatchStatusCall::OnCancel() {
  absl::MutexLock lock(&mu_);
  finished_ = true;
  if (!writing_) FinishCancelled();
}

void WatchStatusCall::FinishCancelled() {
  Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the watcher has gone, or the service ends"));
}

}  // namespace bitshard
