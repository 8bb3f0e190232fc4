#include "coordinator/fleet/transport.h"

#include <bit>
#include <chrono>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include <grpcpp/server_builder.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include "coordinator/fleet/token.h"
#include "kernels/base/log.h"
#include "proto/fleet_token.h"
#include "proto/message_limits.h"
#include "proto/status_map.h"
#include "proto/worker.grpc.pb.h"

namespace bitshard {
namespace {

// Heartbeats cover a silent peer; pings keep middle boxes from forgetting the connection.
constexpr int kKeepaliveMs = 30'000;

grpc::ByteBuffer Serialize(const internal::CoordinatorMessage& message) {
  grpc::Slice slice(message.ByteSizeLong());
  // A fresh slice is ours alone to write.
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

std::string TokenOf(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find(kFleetTokenMetadata);
  return it == metadata.end() ? "" : std::string(it->second.data(), it->second.size());
}

}  // namespace

class WorkerStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public std::enable_shared_from_this<WorkerStream> {
 public:
  WorkerStream(FleetTransport* transport, ConnectionId connection)
      : transport_(transport), connection_(connection) {}

  // `self`: kept until OnDone.
  void Begin(std::shared_ptr<WorkerStream> self) {
    self_ = std::move(self);
    StartRead(&incoming_);  // its reaction comes after Connect has returned
    transport_->events_->OnOpened(connection_);
  }

  // Turned away: no events.
  void Refuse(std::shared_ptr<WorkerStream> self, const grpc::Status& status) {
    self_ = std::move(self);
    silent_ = true;
    Finish(status);
  }

  void Send(const grpc::ByteBuffer& bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_ || closing_) return;
    outgoing_.push_back(bytes);  // shares the bytes
    if (!writing_) WriteNext();
  }

  void Close(grpc::Status status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (closed_ || closing_) return;
    closing_ = std::move(status);
    if (!writing_) FinishNow();
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) {
      ReportClosed();
      absl::MutexLock lock(&mu_);
      if (closed_) return;
      // The worker has ended its side, or the connection is gone: nothing more to say.
      outgoing_.clear();
      if (!closing_) closing_ = grpc::Status::OK;
      if (!writing_) FinishNow();
      return;
    }
    auto message = std::make_unique<internal::WorkerMessage>();
    {
      grpc::ProtoBufferReader reader(&incoming_);
      if (!reader.status().ok() || !message->ParseFromZeroCopyStream(&reader)) message->Clear();
    }
    transport_->events_->OnMessage(connection_, std::move(message));
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) outgoing_.clear();  // reading fails too, and reports it
    if (!outgoing_.empty()) {
      WriteNext();
    } else if (closing_ && !closed_) {
      FinishNow();
    }
  }

  void OnCancel() override { ReportClosed(); }

  void OnDone() override {
    ReportClosed();
    transport_->Forget(connection_);
    self_.reset();  // last: this object may go with it
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    writing_ = true;
    current_ = std::move(outgoing_.front());
    outgoing_.pop_front();
    StartWrite(&current_);  // reactions never run inside of Start calls
  }

  void FinishNow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    closed_ = true;
    Finish(*closing_);
  }

  void ReportClosed() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (std::exchange(silent_, true)) return;
    }
    transport_->events_->OnClosed(connection_);
  }

  FleetTransport* const transport_;
  const ConnectionId connection_;
  std::shared_ptr<WorkerStream> self_;
  grpc::ByteBuffer incoming_;

  absl::Mutex mu_;
  std::deque<grpc::ByteBuffer> outgoing_ ABSL_GUARDED_BY(mu_);
  grpc::ByteBuffer current_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<grpc::Status> closing_ ABSL_GUARDED_BY(mu_);  // Finish with it when all is written
  bool closed_ ABSL_GUARDED_BY(mu_) = false;                  // Finish has been called
  bool silent_ ABSL_GUARDED_BY(mu_) = false;  // OnClosed has been given, or must not be
};

class FleetTransport::Service final
    : public internal::Fleet::WithRawCallbackMethod_Connect<internal::Fleet::Service> {
 public:
  explicit Service(FleetTransport* transport) : transport_(transport) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Connect(
      grpc::CallbackServerContext* context) override {
    std::shared_ptr<WorkerStream> stream;
    absl::Status refusal = CheckToken(TokenOf(*context), transport_->token_);
    {
      absl::MutexLock lock(&transport_->mu_);
      if (!refusal.ok() && std::has_single_bit(++transport_->strangers_)) {
        LogWarning("fleet: event=stranger_refused peer={} times={} cause=\"{}\"", context->peer(),
                   transport_->strangers_, std::string(refusal.message()));
      }
      const ConnectionId connection = ++transport_->last_connection_;
      stream = std::make_shared<WorkerStream>(transport_, connection);
      if (!transport_->accepting_) {
        refusal = absl::UnavailableError("the coordinator is starting or stopping; dial again");
      }
      if (refusal.ok()) transport_->streams_[connection] = stream;
    }
    WorkerStream* raw = stream.get();
    if (refusal.ok()) {
      raw->Begin(std::move(stream));
    } else {
      raw->Refuse(std::move(stream), ToGrpc(refusal));
    }
    return raw;
  }

 private:
  FleetTransport* const transport_;
};

FleetTransport::FleetTransport(const std::string& token, TransportEvents* events)
    : token_(token), events_(events), service_(std::make_unique<Service>(this)) {}

FleetTransport::~FleetTransport() { Shutdown(absl::ZeroDuration()); }

absl::StatusOr<std::unique_ptr<FleetTransport>> FleetTransport::Listen(
    const std::string& host, int port, std::shared_ptr<grpc::ServerCredentials> credentials,
    const std::string& token, TransportEvents* events) {
  std::unique_ptr<FleetTransport> transport(new FleetTransport(token, events));
  grpc::ServerBuilder builder;
  // Reflection and the like registered for the whole program do not belong on this port.
  struct NoPlugins final : grpc::ServerBuilderOption {
    void UpdateArguments(grpc::ChannelArguments*) override {}
    void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
      plugins->clear();
    }
  };
  builder.SetOption(std::make_unique<NoPlugins>());
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.SetMaxReceiveMessageSize(kMaxFleetMessageBytes);
  builder.SetMaxSendMessageSize(-1);
  builder.AddListeningPort(absl::StrCat(host, ":", port), std::move(credentials),
                           &transport->port_);
  builder.RegisterService(transport->service_.get());
  transport->server_ = builder.BuildAndStart();
  if (transport->server_ == nullptr || transport->port_ == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", host, ":", port,
                     " for workers; is the port taken? Try another --fleet-port (0 picks one)"));
  }
  return transport;
}

void FleetTransport::Accept() {
  absl::MutexLock lock(&mu_);
  accepting_ = true;
}

std::shared_ptr<WorkerStream> FleetTransport::Find(ConnectionId connection) {
  absl::MutexLock lock(&mu_);
  const auto it = streams_.find(connection);
  return it == streams_.end() ? nullptr : it->second;
}

void FleetTransport::Send(absl::Span<const ConnectionId> to,
                          const internal::CoordinatorMessage& message) {
  const grpc::ByteBuffer bytes = Serialize(message);
  for (const ConnectionId connection : to) {
    if (const std::shared_ptr<WorkerStream> stream = Find(connection)) stream->Send(bytes);
  }
}

void FleetTransport::Close(ConnectionId connection, const absl::Status& why) {
  if (const std::shared_ptr<WorkerStream> stream = Find(connection)) stream->Close(ToGrpc(why));
}

void FleetTransport::Forget(ConnectionId connection) {
  absl::MutexLock lock(&mu_);
  streams_.erase(connection);
}

void FleetTransport::Shutdown(absl::Duration grace) {
  {
    absl::MutexLock lock(&mu_);
    accepting_ = false;
  }
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(grace));
  server_->Wait();
  server_.reset();  // waits for the last reactions
}

}  // namespace bitshard
