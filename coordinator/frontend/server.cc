#include "coordinator/frontend/server.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>

#include "coordinator/frontend/call_metrics.h"
#include "coordinator/frontend/inference_service.h"
#include "coordinator/frontend/load_trailer.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

// Prompts are text: the longest context we know, four bytes a token, with room. Texts that Tokenize
// takes fit (text_methods.cc).
constexpr int kMaxReceiveBytes = 8 << 20;
constexpr int kMaxMetadataBytes = 16 << 10;
constexpr int kMaxStreams = 1000;  // per connection
constexpr int kKeepaliveMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
constexpr int kMinPingIntervalMs = 5'000;  // clients may ping every 10 s
// Spreads load behind L4 balancers. Calls under way end on the old connection, however long they
// take: dead peers are keepalive's to find.
constexpr int kMaxConnectionAgeMs = 30 * 60'000;
constexpr size_t kMaxMemoryBytes = 512 << 20;    // of gRPC's own buffers
constexpr size_t kMaxLongTexts = 256;            // that wait to be tokenized
constexpr size_t kMaxLongTextBytes = 128 << 20;  // of these

// Plugins that the program registered for every server are left out; reflection is put in where it
// is wanted.
class Plugins final : public grpc::ServerBuilderOption {
 public:
  explicit Plugins(bool reflection) : reflection_(reflection) {}
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->clear();
    if (reflection_)
      plugins->push_back(std::make_unique<grpc::reflection::ProtoServerReflectionPlugin>());
  }

 private:
  const bool reflection_;
};

absl::StatusOr<std::unique_ptr<grpc::Server>> Open(const std::string& what, const std::string& host,
                                                   int port, bool reflection,
                                                   const std::vector<grpc::Service*>& services,
                                                   EngineMetrics* metrics, int* chosen,
                                                   const Engine* load_of = nullptr) {
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<Plugins>(reflection));
  builder.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kMaxConnectionAgeMs);
  grpc::ResourceQuota quota(what);
  quota.Resize(kMaxMemoryBytes);
  builder.SetResourceQuota(quota);
  builder.AddListeningPort(absl::StrCat(host, ":", port), grpc::InsecureServerCredentials(),
                           chosen);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(MakeCallMetrics(metrics));
  if (load_of != nullptr) interceptors.push_back(MakeLoadTrailer(load_of));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  for (grpc::Service* service : services) builder.RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || *chosen == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", host, ":", port, " (", what,
                     port == 0 ? "); is that an address of this machine (--bind, --admin-bind)?"
                               : "); is the port taken? Try another one (0 picks one)"));
  }
  return server;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FrontendServer>> FrontendServer::Start(Options options,
                                                                      Engine* engine,
                                                                      const ServedModel* model,
                                                                      EngineMetrics* metrics) {
  std::unique_ptr<FrontendServer> server(new FrontendServer());
  server->options_ = std::move(options);
  server->writer_ = std::make_unique<StreamWriter>();
  server->background_ = std::make_unique<Background>(kMaxLongTexts, kMaxLongTextBytes);
  server->readiness_ =
      std::make_unique<ReadinessMonitor>(engine, &server->health_, server->options_.stall_timeout);

  FrontendContext& frontend = server->frontend_;
  frontend.engine = engine;
  frontend.model = model;
  frontend.metrics = metrics;
  frontend.writer = server->writer_.get();
  frontend.background = server->background_.get();
  frontend.slow_reader = server->options_.slow_reader;
  frontend.grammars = server->options_.grammars;

  AdminSources& admin = server->options_.admin;
  admin.engine = engine;
  admin.model = model;
  admin.readiness = server->readiness_.get();
  admin.writer = server->writer_.get();
  // The answer to Drain comes when nobody is sent here any more.
  admin.drain = [readiness = server->readiness_.get(),
                 begin = std::move(admin.drain)](std::optional<absl::Duration> timeout) {
    readiness->SetDraining();
    begin(timeout);
  };

  server->inference_ = MakeInferenceService(&server->frontend_);
  server->admin_ = MakeAdminService(&admin);
  for (auto& service : server->health_services_) service = MakeHealthService(&server->health_);

  const Options& o = server->options_;
  ASSIGN_OR_RETURN(server->health_server_,
                   Open("--health-port", o.host, o.health_port, o.reflection,
                        {server->health_services_[0].get()}, metrics, &server->ports_.health));
  ASSIGN_OR_RETURN(server->admin_server_,
                   Open("--admin-port", o.admin_host, o.admin_port, /*reflection=*/true,
                        {server->admin_.get(), server->health_services_[1].get()}, metrics,
                        &server->ports_.admin));
  ASSIGN_OR_RETURN(server->inference_server_,
                   Open("--port", o.host, o.port, o.reflection,
                        {server->inference_.get(), server->health_services_[2].get()}, metrics,
                        &server->ports_.inference, /*load_of=*/engine));
  return server;
}

FrontendServer::~FrontendServer() { Shutdown(absl::ZeroDuration()); }

void FrontendServer::Shutdown(absl::Duration grace) {
  const auto deadline = absl::ToChronoTime(absl::Now() + grace);
  background_->Stop();  // calls that wait for it end with it
  for (std::unique_ptr<grpc::Server>* server :
       {&inference_server_, &admin_server_, &health_server_}) {
    if (*server == nullptr) continue;
    (*server)->Shutdown(deadline);
    (*server)->Wait();
    server->reset();  // waits for the last reactions
  }
}

}  // namespace bitshard
