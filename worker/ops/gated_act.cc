// gated_act: activation(gate) * up.
#include <memory>

#include "kernels/base/status_macros.h"
#include "kernels/registry/elementwise.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class GatedActOp final : public Op {
 public:
  GatedActOp(Activation activation, const float* gate, const float* up, int64_t width, float* out,
             Isa isa)
      : activation_(activation), gate_(gate), up_(up), width_(width), out_(out), isa_(isa) {}

  absl::Status Run(StepState& step) override {
    if (width_ == 0) return absl::OkStatus();  // no columns here
    GatedAct(activation_, gate_, width_, up_, width_, step.count(), width_, out_, width_, isa_,
             *step.pool);
    return absl::OkStatus();
  }

  std::string Describe() const override { return ElementwiseKernelName("gated_act", isa_); }

 private:
  const Activation activation_;
  const float* const gate_;
  const float* const up_;
  const int64_t width_;
  float* const out_;
  const Isa isa_;
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
  RETURN_IF_ERROR(bind.ExpectValues(node, {Value::F32, Value::F32}, {Value::F32}));
  const uint32_t gate = node.inputs(0), up = node.inputs(1), out = node.outputs(0);
  if (bind.width(gate) != bind.width(up) || bind.width(gate) != bind.width(out)) {
    return absl::InvalidArgumentError("gate, up and output differ in width");
  }
  Activation activation;
  switch (node.gated_act().activation()) {
    case internal::GatedAct::SILU:
      activation = Activation::kSilu;
      break;
    case internal::GatedAct::GELU_TANH:
      activation = Activation::kGeluTanh;
      break;
    default:
      return absl::UnimplementedError("unknown activation; there are SILU and GELU_TANH");
  }
  return std::make_unique<GatedActOp>(activation, bind.f32(gate), bind.f32(up), bind.width(out),
                                      bind.f32(out), bind.options().isa);
}

const RegisterOp kRegistered(Node::kGatedAct, "gated_act", &Bind);

}  // namespace
}  // namespace bitshard
