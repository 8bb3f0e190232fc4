// bitshard.v1.Inference: our own public face. Every method takes raw bytes (wire.h says why).
#pragma once

#include <memory>

#include <grpcpp/impl/service_type.h>

#include "coordinator/frontend/frontend_context.h"

namespace bitshard {

// `frontend` outlives the service.
std::unique_ptr<grpc::Service> MakeInferenceService(const FrontendContext* frontend);

}  // namespace bitshard
