// The coordinator's doors: the public port, the admin port, and the plaintext health port for
// kubelets.
//
// Order of life: Start; Drain-time calls; Shutdown. The engine outlives it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include "coordinator/frontend/admin_service.h"
#include "coordinator/frontend/frontend_context.h"
#include "coordinator/frontend/health.h"
#include "coordinator/frontend/readiness.h"

namespace bitshard {

class FrontendServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";  // of the public and the health port
    std::string admin_host = "127.0.0.1";
    int port = 0;  // 0 = pick one
    int admin_port = 0;
    int health_port = 0;
    bool reflection = true;  // on the public and health ports; the admin port always has it
    absl::Duration stall_timeout = absl::Seconds(5);
    SlowReaderPolicy slow_reader;
    GrammarCompiler* grammars =
        nullptr;         // outlives the server; null: constraints are UNIMPLEMENTED
    AdminSources admin;  // engine, model, readiness and writer are filled in here
  };
  struct Ports {
    int inference = 0, admin = 0, health = 0;
  };

  // `engine`, `model` and `metrics` outlive the server. UNAVAILABLE names the port that is taken.
  static absl::StatusOr<std::unique_ptr<FrontendServer>> Start(Options options, Engine* engine,
                                                               const ServedModel* model,
                                                               EngineMetrics* metrics);
  ~FrontendServer();  // Shutdown(0)

  const Ports& ports() const { return ports_; }
  HealthState& health() { return health_; }
  // Readiness goes down; calls still come in, and are the engine's to refuse.
  void SetDraining() { readiness_->SetDraining(); }
  // Ends what is left after `grace`.
  void Shutdown(absl::Duration grace);

 private:
  FrontendServer() = default;

  Options options_;
  Ports ports_;
  HealthState health_;
  std::unique_ptr<StreamWriter> writer_;
  std::unique_ptr<Background> background_;
  FrontendContext frontend_;
  std::unique_ptr<ReadinessMonitor> readiness_;
  std::unique_ptr<grpc::Service> inference_, admin_, health_services_[3];
  std::unique_ptr<grpc::Server> inference_server_, admin_server_, health_server_;
};

}  // namespace bitshard
