// bitshard.v1.Admin: the operators' face, on its own port.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include <grpcpp/impl/service_type.h>

#include "coordinator/engine/engine.h"
#include "coordinator/fleet/member.h"
#include "coordinator/frontend/readiness.h"
#include "coordinator/frontend/served_model.h"
#include "coordinator/frontend/stream_writer.h"
#include "coordinator/frontend/to_proto.h"
#include "proto/admin.pb.h"

namespace bitshard {

struct AdminSources {
  const Engine* engine = nullptr;
  const ServedModel* model = nullptr;
  const ReadinessMonitor* readiness = nullptr;
  StreamWriter* writer = nullptr;
  std::function<GroupSnapshot()> group;
  // Begins the orderly end and returns at once; the argument is absent for the default time.
  std::function<void(std::optional<absl::Duration> timeout)> drain;
  std::string version;
  absl::Time started_at;
  LoadBounds load;
};

void FillStatus(const AdminSources& sources, v1::ServiceStatus* out);

// `sources` outlives the service.
std::unique_ptr<grpc::Service> MakeAdminService(const AdminSources* sources);

}  // namespace bitshard
