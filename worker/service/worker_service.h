// A worker's life on the fleet protocol (proto/worker.proto): dials the coordinator, registers, and
// turns what comes down the control stream into tasks of the step thread.
//
// Threads: Run is the control thread (dial, bring-up messages, heartbeats, silence); gRPC's threads
// read the stream and hand step plans straight to the step thread; the step thread works and
// answers. One control stream at a time. Invariants: the accepted term only grows; when a stream
// ends, its epoch is aborted and its cache dropped before the next dial, weights are kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include <grpcpp/security/credentials.h>

#include "proto/worker.pb.h"
#include "worker/metrics.h"
#include "worker/service/backend.h"
#include "worker/service/fleet_stream.h"
#include "worker/service/step_thread.h"

namespace bitshard {

class WorkerService {
 public:
  struct Options {
    std::string coordinator;  // host:port of the fleet port
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    // Who this worker is; term and held weights are filled in at every dial. memory_bytes bounds
    // weights and cache.
    internal::Register registration;
    absl::Duration heartbeat_period = absl::Milliseconds(250);
    absl::Duration silence_limit = absl::Seconds(3);
    absl::Duration first_backoff = absl::Milliseconds(50);
    absl::Duration max_backoff = absl::Seconds(1);
    // Run gives up when it has heard nothing for so long, over all dials.
    absl::Duration coordinator_timeout = absl::InfiniteDuration();
    // How often the memory report goes out, once an epoch has begun.
    absl::Duration memory_period = absl::Seconds(5);
  };

  WorkerService(Options options, WorkerBackend backend, WorkerMetrics* metrics);
  ~WorkerService();

  // Returns OK after Leave; PERMISSION_DENIED after a wrong token or a Release that says exit;
  // UNAVAILABLE after the coordinator's timeout.
  absl::Status Run();

  // Any thread: announces Leaving, then Run returns.
  void Leave(std::string reason);

 private:
  struct Event {
    enum class Kind { kMessage, kStreamEnd, kLeave };
    Kind kind = Kind::kMessage;
    uint64_t session = 0;  // of kMessage and kStreamEnd
    std::unique_ptr<internal::CoordinatorMessage> message;
    absl::Status status;
    std::string reason;
  };
  enum class Verdict { kGoOn, kRedial, kExit };

  void Post(Event event) ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<Event> NextEvent(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);
  void SendFromStepThread(uint64_t session, internal::WorkerMessage message);

  Verdict ServeOneStream();
  Verdict Handle(Event event);
  void TellOfStreamEnd(const absl::Status& status);
  Verdict HandleMessage(internal::CoordinatorMessage& message);
  void HandleAssign(std::unique_ptr<internal::Assign> assign);
  void HandleJoin(const internal::JoinCommunicator& join);
  internal::WorkerMessage Registration() const;
  void SendHeartbeat();
  void SendMemoryReport(internal::MemoryReport report);
  void SendFailure(const absl::Status& status, uint64_t epoch);

  const Options options_;
  const std::function<internal::MemoryReport()> measure_memory_;  // may be empty
  std::atomic<int64_t> last_heard_ns_;  // on the monotonic clock; written by gRPC's threads too

  // The control thread's own.
  uint64_t session_ = 0;
  uint64_t term_ = 0;      // highest accepted
  bool assigned_ = false;  // on this stream
  uint64_t epoch_ = 0;     // highest of the term
  absl::Status turned_away_;
  int64_t told_ns_ = 0;  // when the log last said that nobody answers

  absl::Mutex mu_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mu_);

  // Guards the pointer only, so that the step thread cannot write to a stream that is being
  // destroyed.
  absl::Mutex stream_mu_;
  std::unique_ptr<FleetStream> stream_ ABSL_GUARDED_BY(stream_mu_);
  uint64_t stream_session_ ABSL_GUARDED_BY(stream_mu_) = 0;

  StepThread step_thread_;
};

}  // namespace bitshard
