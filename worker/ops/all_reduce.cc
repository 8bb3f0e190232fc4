// all_reduce: the ranks' int64 values become one, then f32 again.
//
// Segment sums travel with the poison counts of their tokens in one collective. A poisoned token is
// checked before the conversion and becomes NaN, and it is marked for the rest of its sequence:
// int64 would hide what went wrong.
#include "worker/ops/all_reduce.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>

#include "kernels/base/status_macros.h"
#include "worker/ops/bind_context.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class AllReduceOp final : public Op {
 public:
  AllReduceOp(const AllReducePart& part, Isa isa)
      : part_(part), isa_(isa), kernels_(ChooseRowKernels(isa)) {}

  absl::Status Run(StepState& step) override {
    RETURN_IF_ERROR(part_.Reduce(step));
    step.pool->ParallelFor(step.count(), [&](int64_t row, int) {
      part_.Row(step, row, /*residual=*/nullptr, kernels_, part_.y + row * part_.width);
    });
    return absl::OkStatus();
  }

  std::vector<KernelChoice> Choices() const override { return part_.Choices(isa_); }

 private:
  const AllReducePart part_;
  const Isa isa_;
  const RowKernels kernels_;
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
  ASSIGN_OR_RETURN(const AllReducePart part, BindAllReduce(node, bind));
  return std::make_unique<AllReduceOp>(part, bind.options().isa);
}

const RegisterOp kRegistered(Node::kAllReduce, "all_reduce", &Bind);

}  // namespace

absl::Status AllReducePart::Reduce(StepState& step) const {
  const int64_t tokens = step.count();
  if (raw_bits) {
    return step.collective->AllReduceSum(absl::MakeSpan(in, static_cast<size_t>(tokens * width)));
  }
  RETURN_IF_ERROR(
      step.collective->AllReduceSum(absl::MakeSpan(in, static_cast<size_t>(tokens * (width + 1)))));
  const int64_t* const poison = in + tokens * width;
  for (int64_t t = 0; t < tokens; ++t) {
    if (poison[t] != 0) step.poisoned[static_cast<size_t>(t)] = 1;
  }
  return absl::OkStatus();
}

void AllReducePart::Row(const StepState& step, int64_t row, const float* residual,
                        const RowKernels& kernels, float* out) const {
  const int64_t* const values = in + row * width;
  if (raw_bits) {
    for (int64_t i = 0; i < width; ++i) {
      const float value = std::bit_cast<float>(static_cast<uint32_t>(values[i]));
      out[i] = residual == nullptr ? value : residual[i] + value;
    }
  } else if (in[step.count() * width + row] != 0) {
    std::fill_n(out, width, std::numeric_limits<float>::quiet_NaN());
  } else {
    kernels.sums(values, bias, residual, width, out);
  }
}

std::vector<KernelChoice> AllReducePart::Choices(Isa isa) const {
  if (raw_bits) return {};
  return {ElementwiseChoice("sums", isa)};
}

absl::StatusOr<AllReducePart> BindAllReduce(const Node& node, GraphValues& bind) {
  AllReducePart part;
  part.raw_bits = node.inputs_size() == 1 &&
                  bind.graph().values(static_cast<int>(node.inputs(0))).type() == Value::RAW_BITS;
  RETURN_IF_ERROR(bind.ExpectValues(node, {part.raw_bits ? Value::RAW_BITS : Value::SEGMENT_SUM},
                                    {Value::F32}));
  const uint32_t in = node.inputs(0), out = node.outputs(0);
  if (bind.width(in) != bind.width(out)) {
    return absl::InvalidArgumentError("its input and output differ in width");
  }
  if (part.raw_bits && node.all_reduce().has_bias()) {
    return absl::InvalidArgumentError("raw bits take no bias");
  }
  if (node.all_reduce().has_bias()) {
    ASSIGN_OR_RETURN(part.bias, bind.Vector(node.all_reduce().bias(), bind.width(out)));
  }
  part.in = bind.i64(in);
  part.width = bind.width(in);
  part.y = bind.f32(out);
  return part;
}

}  // namespace bitshard
