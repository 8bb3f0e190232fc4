// gated_act: activation(gate) * up.
#include "worker/ops/gated_act.h"

#include <memory>

#include "kernels/base/status_macros.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class GatedActOp final : public Op {
 public:
  GatedActOp(const GatedActPart& part, Isa isa) : part_(part), isa_(isa) {}

  absl::Status Run(StepState& step) override {
    const int64_t width = part_.width;
    if (width == 0) return absl::OkStatus();  // no columns here
    GatedAct(part_.activation, part_.gate, width, part_.up, width, step.count(), width, part_.out,
             width, isa_, *step.pool);
    return absl::OkStatus();
  }

  std::vector<KernelChoice> Choices() const override {
    return {ElementwiseChoice("gated_act", isa_)};
  }

 private:
  const GatedActPart part_;
  const Isa isa_;
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
  ASSIGN_OR_RETURN(const GatedActPart part, BindGatedAct(node, bind));
  return std::make_unique<GatedActOp>(part, bind.options().isa);
}

const RegisterOp kRegistered(Node::kGatedAct, "gated_act", &Bind);

}  // namespace

absl::StatusOr<GatedActPart> BindGatedAct(const Node& node, GraphValues& bind) {
  RETURN_IF_ERROR(bind.ExpectValues(node, {Value::F32, Value::F32}, {Value::F32}));
  const uint32_t gate = node.inputs(0), up = node.inputs(1), out = node.outputs(0);
  if (bind.width(gate) != bind.width(up) || bind.width(gate) != bind.width(out)) {
    return absl::InvalidArgumentError("gate, up and output differ in width");
  }
  GatedActPart part;
  switch (node.gated_act().activation()) {
    case internal::GatedAct::SILU:
      part.activation = Activation::kSilu;
      break;
    case internal::GatedAct::GELU_TANH:
      part.activation = Activation::kGeluTanh;
      break;
    default:
      return absl::UnimplementedError("unknown activation; there are SILU and GELU_TANH");
  }
  part.width = bind.width(out);
  part.gate = bind.f32(gate);
  part.up = bind.f32(up);
  part.out = bind.f32(out);
  return part;
}

}  // namespace bitshard
