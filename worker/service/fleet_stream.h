// One control stream to the coordinator's fleet port: messages out in order, messages in by
// callback.
//
// Made and destroyed by the control thread; Send may be called from any thread. The callbacks run
// on gRPC's threads, one at a time, and never after the destructor has returned.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include "proto/worker.grpc.pb.h"
#include "proto/worker.pb.h"

namespace bitshard {

class FleetStream final
    : private grpc::ClientBidiReactor<internal::WorkerMessage, internal::CoordinatorMessage> {
 public:
  struct Callbacks {
    std::function<void(std::unique_ptr<internal::CoordinatorMessage>)> on_message;
    std::function<void(const absl::Status& status)> on_end;  // once, after the last message
  };

  // `token`: of the group; goes ahead of all messages (proto/fleet_token.h).
  FleetStream(std::shared_ptr<grpc::Channel> channel, const std::string& token,
              Callbacks callbacks);
  ~FleetStream() override;  // cancels what is left of the stream and waits for it

  FleetStream(const FleetStream&) = delete;
  FleetStream& operator=(const FleetStream&) = delete;

  // Dropped silently when the stream has ended: on_end tells.
  void Send(internal::WorkerMessage message) ABSL_LOCKS_EXCLUDED(mu_);

  // No more messages from us; true when everything was sent and the stream ended within `timeout`.
  bool Finish(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Callbacks callbacks_;
  const std::unique_ptr<internal::Fleet::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<internal::CoordinatorMessage> incoming_;
  absl::Notification done_;

  absl::Mutex mu_;
  std::deque<internal::WorkerMessage> outgoing_ ABSL_GUARDED_BY(mu_);
  internal::WorkerMessage writing_message_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;  // half-close after the last queued message
  bool closed_ ABSL_GUARDED_BY(mu_) = false;     // nothing can be written any more
};

}  // namespace bitshard
