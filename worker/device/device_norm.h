// The norm of a node as a device does it, alone or behind the sum that it reads.
#pragma once

#include "absl/status/statusor.h"

#include "kernels/registry/device_rows.h"
#include "proto/graph.pb.h"
#include "worker/device/device_bind_context.h"

namespace bitshard {

// All but m. It makes the form in which the matrices after it read its output.
absl::StatusOr<DeviceNorm> BindDeviceNorm(const internal::Node& node, DeviceBindContext& bind);

}  // namespace bitshard
