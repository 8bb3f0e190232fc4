// lm_head on a device: logits of this rank's vocabulary rows for some of the step's rows. Not part
// of captured graphs: it runs for as many rows as there are.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/registry/kernel_choice.h"
#include "kernels/tensor/device.h"
#include "worker/device/device_bind_context.h"
#include "worker/device/device_op.h"

namespace bitshard {

class DeviceHead {
 public:
  virtual ~DeviceHead() = default;
  // `rows`: on the device, indices into the step's rows, at most max_outputs. Once the stream has
  // passed, logits() holds [count, vocab()].
  virtual absl::Status Enqueue(const int32_t* rows, int64_t count, const DeviceStep& step) = 0;
  virtual const float* logits() const = 0;  // on the device
  virtual int64_t vocab() const = 0;        // this rank's; may be 0
  // Hidden states that it reads, on the device: [tokens, hidden()].
  virtual const float* input() const = 0;
  virtual int64_t hidden() const = 0;
  virtual std::vector<KernelChoice> Choices() const = 0;
};

// `node`: the index of the graph's lm_head. Errors name it.
absl::StatusOr<std::unique_ptr<DeviceHead>> BindDeviceHead(int node, DeviceBindContext& bind);

}  // namespace bitshard
