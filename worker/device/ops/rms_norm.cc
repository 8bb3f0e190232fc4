// rms_norm, and on the way the form in which the matrices after it read it.
#include "worker/ops/rms_norm.h"

#include <memory>

#include "kernels/base/status_macros.h"
#include "worker/device/device_norm.h"
#include "worker/device/device_op.h"

namespace bitshard {
namespace {

using internal::Node;

class DeviceRmsNorm final : public DeviceOp {
 public:
  explicit DeviceRmsNorm(const DeviceNorm& rows) : rows_(rows) {}

  absl::Status Enqueue(const DeviceStep& step) override {
    DeviceNorm rows = rows_;
    rows.m = step.tokens;
    return step.kernels->Norm(rows, *step.stream);
  }

 private:
  const DeviceNorm rows_;
};

absl::StatusOr<std::unique_ptr<DeviceOp>> Bind(const NodeGroup& group, DeviceBindContext& bind) {
  ASSIGN_OR_RETURN(const DeviceNorm rows, BindDeviceNorm(bind.graph().nodes(group.first), bind));
  return std::make_unique<DeviceRmsNorm>(rows);
}

const RegisterDeviceOp kRegistered(Node::kRmsNorm, "rms_norm", &Bind);

}  // namespace

absl::StatusOr<DeviceNorm> BindDeviceNorm(const internal::Node& node, DeviceBindContext& bind) {
  ASSIGN_OR_RETURN(const RmsNormPart part, BindRmsNorm(node, bind));
  DeviceNorm rows;
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
  return rows;
}

}  // namespace bitshard
