// rms_norm, and on the way the form in which the matrices after it read it.
#include "worker/ops/rms_norm.h"

#include <memory>

#include "kernels/base/status_macros.h"
#include "worker/device/device_op.h"

namespace bitshard {
namespace {

using internal::Node;

class DeviceRmsNorm final : public DeviceOp {
 public:
  explicit DeviceRmsNorm(const DeviceKernels::NormRows& rows) : rows_(rows) {}

  absl::Status Enqueue(const DeviceStep& step) override {
    DeviceKernels::NormRows rows = rows_;
    rows.m = step.tokens;
    return step.kernels->Norm(rows, *step.stream);
  }

 private:
  const DeviceKernels::NormRows rows_;
};

absl::StatusOr<std::unique_ptr<DeviceOp>> Bind(const NodeGroup& group, DeviceBindContext& bind) {
  const Node& node = bind.graph().nodes(group.first);
  ASSIGN_OR_RETURN(const RmsNormPart part, BindRmsNorm(node, bind));
  DeviceKernels::NormRows rows;
  rows.x = part.x;
  rows.weight = part.weight;
  rows.epsilon = part.epsilon;
  rows.width = part.width;
  DevicePrepared* const prepared = bind.prepared().First(node.outputs(0));
  if (prepared != nullptr) {
    rows.prepared = &prepared->form;
    prepared->made = true;
  }
  if (prepared == nullptr || bind.prepared().NeedsF32(node.outputs(0))) rows.y = part.y;
  return std::make_unique<DeviceRmsNorm>(rows);
}

const RegisterDeviceOp kRegistered(Node::kRmsNorm, "rms_norm", &Bind);

}  // namespace
}  // namespace bitshard
