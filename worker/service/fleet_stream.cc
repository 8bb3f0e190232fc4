#include "worker/service/fleet_stream.h"

#include <utility>

#include "proto/fleet_token.h"
#include "proto/status_map.h"

namespace bitshard {

FleetStream::FleetStream(std::shared_ptr<grpc::Channel> channel, const std::string& token,
                         Callbacks callbacks)
    : callbacks_(std::move(callbacks)),
      stub_(internal::Fleet::NewStub(channel)),
      incoming_(std::make_unique<internal::CoordinatorMessage>()) {
  if (!token.empty()) context_.AddMetadata(kFleetTokenMetadata, token);
  stub_->async()->Connect(&context_, this);
  AddHold();  // for writes from outside of reactions; removed when reading ends
  StartRead(incoming_.get());
  StartCall();
}

FleetStream::~FleetStream() {
  if (!done_.HasBeenNotified()) context_.TryCancel();
  done_.WaitForNotification();
}

void FleetStream::Send(internal::WorkerMessage message) {
  absl::MutexLock lock(&mu_);
  if (closed_ || finishing_) return;
  outgoing_.push_back(std::move(message));
  if (!writing_) WriteNext();
}

bool FleetStream::Finish(absl::Duration timeout) {
  {
    absl::MutexLock lock(&mu_);
    if (!closed_ && !finishing_) {
      finishing_ = true;
      if (!writing_) StartWritesDone();
    }
  }
  return done_.WaitForNotificationWithTimeout(timeout);
}

void FleetStream::WriteNext() {
  writing_ = true;
  writing_message_ = std::move(outgoing_.front());
  outgoing_.pop_front();
  StartWrite(&writing_message_);  // reactions never run inside of Start calls
}

void FleetStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  if (!ok) closed_ = true;
  if (closed_) {
    outgoing_.clear();
  } else if (!outgoing_.empty()) {
    WriteNext();
  } else if (finishing_) {
    StartWritesDone();
  }
}

void FleetStream::OnReadDone(bool ok) {
  if (ok) {
    auto message = std::exchange(incoming_, std::make_unique<internal::CoordinatorMessage>());
    callbacks_.on_message(std::move(message));
    StartRead(incoming_.get());
    return;
  }
  {
    absl::MutexLock lock(&mu_);
    closed_ = true;
  }
  RemoveHold();
}

void FleetStream::OnDone(const grpc::Status& status) {
  callbacks_.on_end(FromGrpc(status));
  done_.Notify();  // last: the destructor may be waiting for it
}

}  // namespace bitshard
