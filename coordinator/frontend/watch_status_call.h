// Admin.WatchStatus: the status at once, then at every interval, until the watcher goes.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "coordinator/frontend/admin_service.h"
#include "coordinator/frontend/stream_writer.h"

namespace bitshard {

class WatchStatusCall final : public PumpedStream,
                              public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                              public std::enable_shared_from_this<WatchStatusCall> {
 public:
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(const AdminSources* sources,
                                                           absl::Duration interval);

  WatchStatusCall(const AdminSources* sources, absl::Duration interval)
      : sources_(sources), interval_(interval) {}

 private:
  bool Pump(absl::Time now) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnWriteDone(bool) override ABSL_LOCKS_EXCLUDED(mu_);
  void OnCancel() override ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone() override { self_.reset(); }
  // Once, and nothing is written after it: gRPC frees the call as soon as it can.
  void FinishCancelled() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const AdminSources* const sources_;
  const absl::Duration interval_;
  std::shared_ptr<WatchStatusCall> self_;  // until OnDone
  grpc::ByteBuffer current_;

  absl::Mutex mu_;
  absl::Time next_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  // A message is being made or written; whoever is at it finishes a call that has ended meanwhile.
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;  // nothing more is to be written
};

}  // namespace bitshard
