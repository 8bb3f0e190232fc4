// rope that no attention takes with it: rotates heads by the tokens' positions, in place; the
// buffer plan usually lays the output over the input.
#include "worker/ops/rope.h"

#include <memory>

#include "kernels/base/status_macros.h"
#include "worker/device/device_attention.h"
#include "worker/device/device_op.h"

namespace bitshard {
namespace {

using internal::Node;

class DeviceRopeOp final : public DeviceOp {
 public:
  DeviceRopeOp(const DeviceRope& rope, int heads, int head_dim, const float* in, float* out)
      : rope_(rope), heads_(heads), head_dim_(head_dim), in_(in), out_(out) {}

  absl::Status Enqueue(const DeviceStep& step) override {
    const int64_t width = int64_t{heads_} * head_dim_;
    if (width == 0) return absl::OkStatus();  // no heads here
    if (in_ != out_) {
      const size_t bytes = static_cast<size_t>(step.tokens * width) * sizeof(float);
      RETURN_IF_ERROR(step.device->Copy(out_, in_, bytes, *step.stream));
    }
    return step.kernels->Rotate(out_, width, heads_, head_dim_, rope_, step.arrays, step.tokens,
                                *step.stream);
  }

 private:
  const DeviceRope rope_;
  const int heads_, head_dim_;
  const float* const in_;
  float* const out_;
};

absl::StatusOr<std::unique_ptr<DeviceOp>> Bind(const NodeGroup& group, DeviceBindContext& bind) {
  if (group.count > 1) return BindDeviceAttention(group, bind);
  const Node& node = bind.graph().nodes(group.first);
  RETURN_IF_ERROR(CheckRope(node, bind));
  ASSIGN_OR_RETURN(const RopeConfig config, RopeConfigOf(node.rope(), bind));
  ASSIGN_OR_RETURN(const DeviceRope rope, bind.Rope(config));
  return std::make_unique<DeviceRopeOp>(rope, static_cast<int>(node.rope().heads()),
                                        config.head_dim, bind.f32(node.inputs(0)),
                                        bind.f32(node.outputs(0)));
}

const RegisterDeviceOp kRegistered(Node::kRope, "rope", &Bind);

}  // namespace
}  // namespace bitshard
