// The attention of a node as a device does it, alone or with the rotations before it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"

#include "proto/graph.pb.h"
#include "worker/device/device_op.h"

namespace bitshard {

// Of the group's last node; those before it are the ropes of a group (device_groups.h). What it
// tells of kernels is told of that node.
absl::StatusOr<std::unique_ptr<DeviceOp>> BindDeviceAttention(const NodeGroup& group,
                                                              DeviceBindContext& bind);

}  // namespace bitshard
