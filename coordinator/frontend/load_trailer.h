// The load report on every answer of a server (ORCA, gRFC A51), for balancers such as gRPC's
// weighted_round_robin: an xds.data.orca.v3.OrcaLoadReport in the trailer
// endpoint-load-metrics-bin. The standard services, health and reflection, go without.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include <grpcpp/support/server_interceptor.h>

#include "coordinator/engine/engine.h"
#include "proto/orca.pb.h"

namespace bitshard {

inline constexpr char kLoadTrailer[] = "endpoint-load-metrics-bin";

// named_metrics: kv_usage, running, waiting, waiting_tokens, predicted_wait_seconds.
xds::data::orca::v3::OrcaLoadReport LoadReport(const EngineStats& stats, absl::Time now);

// `engine` outlives the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeLoadTrailer(
    const Engine* engine);

}  // namespace bitshard
