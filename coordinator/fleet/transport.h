// The fleet port: one gRPC stream a worker, bytes to messages and back. Knows nothing of ranks and
// epochs.
//
// Events come on gRPC's threads, those of one connection one at a time. Send and Close may be
// called from anywhere, also from within an event; what is sent to a connection arrives in order. A
// message to several connections is serialised once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include "coordinator/fleet/member.h"
#include "proto/worker.pb.h"

namespace bitshard {

class TransportEvents {
 public:
  virtual ~TransportEvents() = default;
  virtual void OnOpened(ConnectionId connection) = 0;
  // An empty message when the bytes were no WorkerMessage.
  virtual void OnMessage(ConnectionId connection,
                         std::unique_ptr<internal::WorkerMessage> message) = 0;
  // Last event of a connection; once.
  virtual void OnClosed(ConnectionId connection) = 0;
};

class WorkerStream;

class FleetTransport {
 public:
  // `events` outlives the transport. Connections are turned away until Accept, and those whose
  // metadata do not bring the token (proto/fleet_token.h), before anything is read of them.
  // UNAVAILABLE when the port is taken.
  static absl::StatusOr<std::unique_ptr<FleetTransport>> Listen(
      const std::string& host, int port, std::shared_ptr<grpc::ServerCredentials> credentials,
      const std::string& token, TransportEvents* events);
  ~FleetTransport();  // Shutdown(0)

  int port() const { return port_; }
  void Accept() ABSL_LOCKS_EXCLUDED(mu_);
  void Send(absl::Span<const ConnectionId> to, const internal::CoordinatorMessage& message)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the stream with `why` once all that was sent before has been written.
  void Close(ConnectionId connection, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Cuts what is left after `grace`. No event after it returns.
  void Shutdown(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class WorkerStream;
  class Service;

  FleetTransport(const std::string& token, TransportEvents* events);
  void Forget(ConnectionId connection) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<WorkerStream> Find(ConnectionId connection) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string token_;
  TransportEvents* const events_;
  int port_ = 0;
  std::unique_ptr<Service> service_;
  std::unique_ptr<grpc::Server> server_;

  absl::Mutex mu_;
  bool accepting_ ABSL_GUARDED_BY(mu_) = false;
  ConnectionId last_connection_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t strangers_ ABSL_GUARDED_BY(mu_) = 0;  // turned away for their token
  // Shared with the stream itself, which lives until gRPC is done with it.
  std::map<ConnectionId, std::shared_ptr<WorkerStream>> streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bitshard
