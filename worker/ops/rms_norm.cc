// rms_norm: y = w * x / sqrt(mean(x^2) + epsilon), every token alone.
#include <cmath>
#include <memory>

#include "kernels/base/status_macros.h"
#include "kernels/registry/elementwise.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class RmsNormOp final : public Op {
 public:
  RmsNormOp(const float* x, const float* weight, float epsilon, int64_t width, float* y, Isa isa)
      : x_(x), weight_(weight), epsilon_(epsilon), width_(width), y_(y), isa_(isa) {}

  absl::Status Run(StepState& step) override {
    RmsNorm(x_, width_, weight_, epsilon_, step.count(), width_, y_, width_, isa_, *step.pool);
    return absl::OkStatus();
  }

  std::string Describe() const override { return ElementwiseKernelName("rms_norm", isa_); }

 private:
  const float* const x_;
  const float* const weight_;
  const float epsilon_;
  const int64_t width_;
  float* const y_;
  const Isa isa_;
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
  RETURN_IF_ERROR(bind.ExpectValues(node, {Value::F32}, {Value::F32}));
  const uint32_t x = node.inputs(0), y = node.outputs(0);
  const internal::RmsNorm& spec = node.rms_norm();
  if (bind.width(x) == 0 || bind.width(x) != bind.width(y)) {
    return absl::InvalidArgumentError("its input and output differ in width");
  }
  if (!std::isfinite(spec.epsilon()) || spec.epsilon() < 0) {
    return absl::InvalidArgumentError("epsilon must be finite and not negative");
  }
  ASSIGN_OR_RETURN(const std::vector<float>* weight, bind.Vector(spec.weight(), bind.width(x)));
  return std::make_unique<RmsNormOp>(bind.f32(x), weight->data(), spec.epsilon(), bind.width(x),
                                     bind.f32(y), bind.options().isa);
}

const RegisterOp kRegistered(Node::kRmsNorm, "rms_norm", &Bind);

}  // namespace
}  // namespace bitshard
