// residual_add that no all_reduce takes with it: a + b in f32.
#include <memory>

#include "kernels/base/status_macros.h"
#include "worker/device/device_op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class DeviceResidualAdd final : public DeviceOp {
 public:
  DeviceResidualAdd(const float* a, const float* b, int64_t width, float* out)
      : a_(a), b_(b), width_(width), out_(out) {}

  absl::Status Enqueue(const DeviceStep& step) override {
    return step.kernels->Add(a_, b_, out_, step.tokens, width_, *step.stream);
  }

 private:
  const float* const a_;
  const float* const b_;
  const int64_t width_;
  float* const out_;
};

absl::StatusOr<std::unique_ptr<DeviceOp>> Bind(const NodeGroup& group, DeviceBindContext& bind) {
  const Node& node = bind.graph().nodes(group.first);
  RETURN_IF_ERROR(bind.ExpectValues(node, {Value::F32, Value::F32}, {Value::F32}));
  const uint32_t a = node.inputs(0), b = node.inputs(1), out = node.outputs(0);
  if (bind.width(a) != bind.width(b) || bind.width(a) != bind.width(out)) {
    return absl::InvalidArgumentError("its inputs and its output differ in width");
  }
  return std::make_unique<DeviceResidualAdd>(bind.f32(a), bind.f32(b), bind.width(out),
                                             bind.f32(out));
}

const RegisterDeviceOp kRegistered(Node::kResidualAdd, "residual_add", &Bind);

}  // namespace
}  // namespace bitshard
