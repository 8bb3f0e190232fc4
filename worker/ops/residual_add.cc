// residual_add: a + b in f32.
#include <memory>

#include "kernels/base/status_macros.h"
#include "kernels/registry/elementwise.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class ResidualAddOp final : public Op {
 public:
  ResidualAddOp(const float* a, const float* b, int64_t width, float* out)
      : a_(a), b_(b), width_(width), out_(out) {}

  absl::Status Run(StepState& step) override {
    ResidualAdd(a_, width_, b_, width_, step.count(), width_, out_, width_, *step.pool);
    return absl::OkStatus();
  }

 private:
  const float* const a_;
  const float* const b_;
  const int64_t width_;
  float* const out_;
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
  RETURN_IF_ERROR(bind.ExpectValues(node, {Value::F32, Value::F32}, {Value::F32}));
  const uint32_t a = node.inputs(0), b = node.inputs(1), out = node.outputs(0);
  if (bind.width(a) != bind.width(b) || bind.width(a) != bind.width(out)) {
    return absl::InvalidArgumentError("its inputs and its output differ in width");
  }
  return std::make_unique<ResidualAddOp>(bind.f32(a), bind.f32(b), bind.width(out), bind.f32(out));
}

const RegisterOp kRegistered(Node::kResidualAdd, "residual_add", &Bind);

}  // namespace
}  // namespace bitshard
