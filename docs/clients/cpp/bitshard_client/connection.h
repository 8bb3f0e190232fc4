// How to talk to the service: the options of a client, and the channel made of them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/channel.h>

namespace bitshard::client {

// TLS; with key and certificate, mutual TLS. PEM.
struct TlsOptions {
  std::string root_certificates;  // empty: the system's
  std::string private_key;
  std::string certificate_chain;
  std::string server_name;  // when the certificate's name is not the target's
};

// The defaults suit interactive use. Numbers outside their ranges count as the nearest within.
struct ClientOptions {
  // A call without a timeout of its own gets this one: no call waits for ever.
  std::chrono::milliseconds default_timeout{300'000};
  // gRPC's own tries of a call that has brought nothing yet, the first included: 1 (no retries)
  // to 5. While nothing listens, 4 of them take about 1.4 s, whatever the timeout.
  int max_attempts = 4;
  // True: calls wait for a connection to a service that is ready, up to their deadline, in place of
  // failing at once.
  bool wait_for_ready = false;
  // How often a stream that the service took and that broke is resumed without a new token, at
  // most; 0 = never. Tries to go on that the service does not take are not counted: it is away, and
  // only the deadline ends them.
  int max_resumes = 5;
  // TCP connections to each address. One carries hundreds of streams; thousands go faster over
  // several.
  int connections = 1;  // at least 1
  // Absent: plaintext.
  std::optional<TlsOptions> tls;
  // Sent with every call: authorization, traceparent.
  std::vector<std::pair<std::string, std::string>> metadata;
  // Addresses whose grpc.health.v1 service of this name is not SERVING get no calls; empty = take
  // them all.
  std::string health_service = "readiness";
  // A silent connection is tried so often, and given up after so long without an answer. The
  // service tolerates pings every 5 s or slower.
  std::chrono::milliseconds keepalive_time{10'000}, keepalive_timeout{5'000};
  // Retries stop while more than half of these tokens are spent: a failure takes one, a success
  // gives `ratio` back. They are shared by all clients of a process that have the same target.
  int retry_tokens = 100;
  double retry_token_ratio = 0.5;
  // The longest answer; prompt log-probabilities are long.
  int max_receive_bytes = 64 << 20;
};

// "host:port" through DNS, all of its addresses; other gRPC names as they are.
std::string Resolvable(const std::string& target);

// gRPC's service config: balance over all addresses, retry what was refused, keep away from what is
// not ready.
std::string ServiceConfig(const ClientOptions& options);

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& target, const ClientOptions& options);

}  // namespace bitshard::client
