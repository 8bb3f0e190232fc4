// The coordinator's end of the fleet port, driven by a test: streams are accepted one after the
// other and the test reads and writes their messages. Waits are bounded by a generous deadline and
// fail the test.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "proto/worker.grpc.pb.h"
#include "proto/worker.pb.h"

namespace bitshard {

class FakeCoordinator final : public internal::Fleet::Service {
 public:
  class Stream {
   public:
    void Send(const internal::CoordinatorMessage& message);
    // The next message that is no heartbeat and no memory report; an empty one (and a test failure)
    // when none comes.
    internal::WorkerMessage Next();
    // The next heartbeat for which `wanted` holds.
    internal::Heartbeat NextHeartbeat(
        const std::function<bool(const internal::Heartbeat&)>& wanted);
    // The next memory report for which `wanted` holds.
    internal::MemoryReport NextMemoryReport(
        const std::function<bool(const internal::MemoryReport&)>& wanted);
    // True when the worker's side ended before the deadline.
    bool WaitForEnd();
    // Ends the stream from the coordinator's side.
    void Close();
    // What the call's metadata brought.
    const std::string& token() const { return token_; }

   private:
    friend class FakeCoordinator;
    std::optional<internal::WorkerMessage> Take(
        const std::function<bool(const internal::WorkerMessage&)>& wanted);

    std::string token_;
    absl::Mutex mu_;
    std::deque<internal::WorkerMessage> received_;
    bool ended_ = false;
    bool released_ = false;  // the handler has returned: nothing can be sent
    grpc::ServerContext* context_ = nullptr;
    grpc::ServerReaderWriter<internal::CoordinatorMessage, internal::WorkerMessage>* rpc_ = nullptr;
  };

  // `port` 0: any.
  explicit FakeCoordinator(int port = 0);
  ~FakeCoordinator() override;

  std::string address() const;
  int port() const { return port_; }
  // The next stream that a worker has opened; null (and a test failure) when none comes.
  std::shared_ptr<Stream> Accept();
  // Turns calls with another token away from now on.
  void Want(const std::string& token);

 private:
  grpc::Status Connect(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<internal::CoordinatorMessage,
                                                internal::WorkerMessage>* rpc) override;

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mu_;
  std::deque<std::shared_ptr<Stream>> accepted_;
  std::optional<std::string> wanted_token_;
};

}  // namespace bitshard
