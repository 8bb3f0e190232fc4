// Counts every gRPC call of a server, also those that no face of ours answers: started, ended by
// code, and how long it took.
#pragma once

#include <memory>

#include <grpcpp/support/server_interceptor.h>

#include "coordinator/engine/engine_metrics.h"

namespace bitshard {

// `metrics` outlives the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallMetrics(
    EngineMetrics* metrics);

}  // namespace bitshard
