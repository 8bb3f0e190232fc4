// all_reduce: the ranks' int64 values become one, then f32 again.
//
// Segment sums travel with the poison counts of their tokens in one collective. A poisoned token is
// checked before the conversion and becomes NaN, and it is marked for the rest of its sequence:
// int64 would hide what went wrong.
#include <memory>

#include "kernels/base/status_macros.h"
#include "kernels/registry/reduction.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class SumSegments final : public Op {
 public:
  SumSegments(int64_t* sums, const float* bias, int64_t width, float* y)
      : sums_(sums), bias_(bias), width_(width), y_(y) {}

  absl::Status Run(StepState& step) override {
    const int64_t tokens = step.count();
    const int64_t* const poison = sums_ + tokens * width_;
    RETURN_IF_ERROR(step.collective->AllReduceSum(
        absl::MakeSpan(sums_, static_cast<size_t>(tokens * (width_ + 1)))));
    for (int64_t t = 0; t < tokens; ++t) {
      if (poison[t] != 0) step.poisoned[static_cast<size_t>(t)] = 1;
    }
    SumsToF32(sums_, width_, poison, tokens, width_, bias_, y_, width_, *step.pool);
    return absl::OkStatus();
  }

 private:
  int64_t* const sums_;
  const float* const bias_;  // null: none
  const int64_t width_;
  float* const y_;
};

class SumRawBits final : public Op {
 public:
  SumRawBits(int64_t* bits, int64_t width, float* y) : bits_(bits), width_(width), y_(y) {}

  absl::Status Run(StepState& step) override {
    RETURN_IF_ERROR(step.collective->AllReduceSum(
        absl::MakeSpan(bits_, static_cast<size_t>(step.count() * width_))));
    RawBitsToF32(bits_, width_, step.count(), width_, y_, width_, *step.pool);
    return absl::OkStatus();
  }

 private:
  int64_t* const bits_;
  const int64_t width_;
  float* const y_;
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
  const bool raw_bits =
      node.inputs_size() == 1 &&
      bind.graph().values(static_cast<int>(node.inputs(0))).type() == Value::RAW_BITS;
  RETURN_IF_ERROR(
      bind.ExpectValues(node, {raw_bits ? Value::RAW_BITS : Value::SEGMENT_SUM}, {Value::F32}));
  const uint32_t in = node.inputs(0), out = node.outputs(0);
  if (bind.width(in) != bind.width(out)) {
    return absl::InvalidArgumentError("its input and output differ in width");
  }
  if (raw_bits) {
    if (node.all_reduce().has_bias()) {
      return absl::InvalidArgumentError("raw bits take no bias");
    }
    return std::make_unique<SumRawBits>(bind.i64(in), bind.width(in), bind.f32(out));
  }
  const float* bias = nullptr;
  if (node.all_reduce().has_bias()) {
    ASSIGN_OR_RETURN(const std::vector<float>* values,
                     bind.Vector(node.all_reduce().bias(), bind.width(out)));
    bias = values->data();
  }
  return std::make_unique<SumSegments>(bind.i64(in), bias, bind.width(in), bind.f32(out));
}

const RegisterOp kRegistered(Node::kAllReduce, "all_reduce", &Bind);

}  // namespace
}  // namespace bitshard
