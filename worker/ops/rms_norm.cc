// rms_norm: y = w * x / sqrt(mean(x^2) + epsilon), every token alone.
#include "worker/ops/rms_norm.h"

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
  RmsNormOp(const RmsNormPart& part, Isa isa) : part_(part), isa_(isa) {}

  absl::Status Run(StepState& step) override {
    RmsNorm(part_.x, part_.width, part_.weight, part_.epsilon, step.count(), part_.width, part_.y,
            part_.width, isa_, *step.pool);
    return absl::OkStatus();
  }

  std::vector<KernelChoice> Choices() const override {
    return {ElementwiseChoice("rms_norm", isa_)};
  }

 private:
  const RmsNormPart part_;
  const Isa isa_;
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
  ASSIGN_OR_RETURN(const RmsNormPart part, BindRmsNorm(node, bind));
  return std::make_unique<RmsNormOp>(part, bind.options().isa);
}

const RegisterOp kRegistered(Node::kRmsNorm, "rms_norm", &Bind);

}  // namespace

absl::StatusOr<RmsNormPart> BindRmsNorm(const Node& node, GraphValues& bind) {
  RETURN_IF_ERROR(bind.ExpectValues(node, {Value::F32}, {Value::F32}));
  const uint32_t x = node.inputs(0), y = node.outputs(0);
  const internal::RmsNorm& spec = node.rms_norm();
  if (bind.width(x) == 0 || bind.width(x) != bind.width(y)) {
    return absl::InvalidArgumentError("its input and output differ in width");
  }
  if (!std::isfinite(spec.epsilon()) || spec.epsilon() < 0) {
    return absl::InvalidArgumentError("epsilon must be finite and not negative");
  }
  RmsNormPart part;
  part.x = bind.f32(x);
  ASSIGN_OR_RETURN(part.weight, bind.Vector(spec.weight(), bind.width(x)));
  part.epsilon = spec.epsilon();
  part.width = bind.width(x);
  part.y = bind.f32(y);
  return part;
}

}  // namespace bitshard
