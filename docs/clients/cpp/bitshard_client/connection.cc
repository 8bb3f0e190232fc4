#include "bitshard_client/connection.h"

#include <algorithm>
#include <cstdint>
#include <sstream>

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

namespace bitshard::client {
namespace {

// The longest request that the service takes. A request beyond gRPC's own 256 KiB would not be kept
// for a retry.
constexpr int kRetryBufferBytes = 8 << 20;
constexpr int kMaxAttempts = 5, kMaxRetryTokens = 1000;  // gRPC takes no more

int AtLeastOne(std::chrono::milliseconds time) {
  return static_cast<int>(std::max<int64_t>(1, time.count()));
}

}  // namespace

std::string Resolvable(const std::string& target) {
  for (const char* scheme : {"dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:"})
    if (target.rfind(scheme, 0) == 0) return target;
  return "dns:///" + target;
}

std::string ServiceConfig(const ClientOptions& options) {
  std::ostringstream json;
  json << R"({"loadBalancingConfig": [{"round_robin": {}}])";
  if (!options.health_service.empty())
    json << R"(, "healthCheckConfig": {"serviceName": ")" << options.health_service << R"("})";
  json << R"(, "methodConfig": [{"name": [{"service": "bitshard.v1.Inference"}])";
  if (options.max_attempts > 1) {
    // The backoff is of UNAVAILABLE. With RESOURCE_EXHAUSTED the service says how long
    // (grpc-retry-pushback-ms).
    json << R"(, "retryPolicy": {"maxAttempts": )" << std::min(options.max_attempts, kMaxAttempts)
         << R"(, "initialBackoff": "0.2s", "maxBackoff": "5s", "backoffMultiplier": 2,)"
         << R"( "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]})";
  }
  json << "}]";
  if (options.max_attempts > 1) {
    json << R"(, "retryThrottling": {"maxTokens": )"
         << std::clamp(options.retry_tokens, 1, kMaxRetryTokens) << R"(, "tokenRatio": )"
         << options.retry_token_ratio << "}";
  }
  json << "}";
  return json.str();
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& target,
                                           const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(ServiceConfig(options));
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 1);
  arguments.SetInt(GRPC_ARG_PER_RPC_RETRY_BUFFER_SIZE, kRetryBufferBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, AtLeastOne(options.keepalive_time));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, AtLeastOne(options.keepalive_timeout));
  // A stream that waits for its first token is silent: without these two gRPC stops pinging it.
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A service that restarts is back in seconds.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetMaxReceiveMessageSize(options.max_receive_bytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, 64 << 10);  // details of errors are metadata
  arguments.SetUserAgentPrefix("bitshard-cpp");
  // Else gRPC shares one connection among channels.
  if (options.connections > 1) arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (options.tls) {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = options.tls->root_certificates;
    ssl.pem_private_key = options.tls->private_key;
    ssl.pem_cert_chain = options.tls->certificate_chain;
    credentials = grpc::SslCredentials(ssl);
    if (!options.tls->server_name.empty())
      arguments.SetSslTargetNameOverride(options.tls->server_name);
  }
  return grpc::CreateCustomChannel(Resolvable(target), credentials, arguments);
}

}  // namespace bitshard::client
