// gated_act: activation(gate) * up, and on the way the form in which the next matrix reads it.
#include "worker/ops/gated_act.h"

#include <memory>

#include "kernels/base/status_macros.h"
#include "worker/device/device_op.h"

namespace bitshard {
namespace {

using internal::Node;

class DeviceGatedAct final : public DeviceOp {
 public:
  DeviceGatedAct(const DeviceGated& rows, const DevicePrepared* prepared)
      : rows_(rows), prepared_(prepared) {}

  absl::Status Enqueue(const DeviceStep& step) override {
    if (rows_.width == 0) return absl::OkStatus();  // no columns here
    DeviceGated rows = rows_;
    rows.m = step.tokens;
    DeviceActivations form;
    if (prepared_ != nullptr) {
      form = prepared_->FormOf(step.tokens);
      rows.prepared = &form;
    }
    return step.kernels->Gated(rows, *step.stream);
  }

 private:
  const DeviceGated rows_;
  const DevicePrepared* const prepared_;  // null: nobody wants it
};

absl::StatusOr<std::unique_ptr<DeviceOp>> Bind(const NodeGroup& group, DeviceBindContext& bind) {
  const Node& node = bind.graph().nodes(group.first);
  ASSIGN_OR_RETURN(const GatedActPart part, BindGatedAct(node, bind));
  DeviceGated rows;
  rows.gate = part.gate;
  rows.up = part.up;
  rows.in_stride = part.width;
  rows.gelu = part.activation == Activation::kGeluTanh;
  rows.width = part.width;
  DevicePrepared* const prepared = bind.prepared().First(node.outputs(0));
  if (prepared != nullptr) prepared->made = prepared->clears = true;
  if (prepared == nullptr || bind.prepared().NeedsF32(node.outputs(0))) rows.y = part.out;
  return std::make_unique<DeviceGatedAct>(rows, prepared);
}

const RegisterDeviceOp kRegistered(Node::kGatedAct, "gated_act", &Bind);

}  // namespace
}  // namespace bitshard
