// What a group of nodes does in a step on a device: ops are made once, at bind, and enqueue their
// kernels in graph order on the step's stream.
//
// One file an op in worker/device/ops; it registers its node kind before main. Bind checks
// everything that can be checked and asks for buffers; Enqueue allocates nothing, looks nothing up
// and waits for nothing: it may be captured into a graph, so it depends on nothing but the numbers
// of DeviceStep.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/registry/device_kernels.h"
#include "kernels/registry/kernel_choice.h"
#include "kernels/tensor/device.h"
#include "proto/graph.pb.h"
#include "worker/collective/device_collective.h"
#include "worker/device/device_bind_context.h"
#include "worker/ops/fusion.h"

namespace bitshard {

struct DeviceStep {
  int64_t tokens = 0;  // rows to compute: the step's, up to the graph's bucket
  DeviceTokens arrays;
  int64_t max_context = 0;      // no position is at or beyond it
  uint8_t* poisoned = nullptr;  // [tokens]; set to 1 by sums that are not finite
  uint8_t* const* cache_layers = nullptr;
  uint64_t* progress = nullptr;  // the host's word, as the device sees it
  Device* device = nullptr;
  const DeviceKernels* kernels = nullptr;
  DeviceCollective* collective = nullptr;
  DeviceStream* stream = nullptr;
};

class DeviceOp {
 public:
  virtual ~DeviceOp() = default;
  // An error when the device or the collective refuses; UNIMPLEMENTED when it has no kernel.
  virtual absl::Status Enqueue(const DeviceStep& step) = 0;
  // Which kernels a node of the group runs on.
  virtual std::vector<KernelChoice> ChoicesOf(int /*member*/) const { return {}; }
};

using BindDeviceOpFn = absl::StatusOr<std::unique_ptr<DeviceOp>> (*)(const NodeGroup& group,
                                                                     DeviceBindContext& bind);

// Before main: `const RegisterDeviceOp kRegistered(internal::Node::kEmbed, "embed", &Bind);`, by
// the first node of a group. A null `bind`: the graph's last nodes, which the executor binds
// itself.
struct RegisterDeviceOp {
  RegisterDeviceOp(internal::Node::OpCase kind, const char* name, BindDeviceOpFn bind);
};

// Errors name the node. UNIMPLEMENTED for a kind that nobody registered; lists those that are.
absl::StatusOr<std::unique_ptr<DeviceOp>> BindDeviceGroup(const NodeGroup& group,
                                                          DeviceBindContext& bind);

// Node kinds that a device can run, sorted: what a worker tells when it registers.
std::vector<std::string> RegisteredDeviceOps();

}  // namespace bitshard
