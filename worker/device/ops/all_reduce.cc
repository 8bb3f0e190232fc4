// all_reduce, with the residual_add that alone reads its output: the ranks' int64 values become
// one, then f32 with bias and residual. Poison counts travel behind the sums of their tokens. The
// host's word says afterwards how far the step has come: ranks wait for each other here.
#include "worker/ops/all_reduce.h"

#include <memory>

#include "kernels/base/status_macros.h"
#include "worker/device/device_op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class DeviceAllReduce final : public DeviceOp {
 public:
  // `next`: the first node after the group.
  DeviceAllReduce(const AllReducePart& part, const float* residual, int next)
      : part_(part), residual_(residual), next_(static_cast<uint64_t>(next)) {}

  absl::Status Enqueue(const DeviceStep& step) override {
    const int64_t m = step.tokens, width = part_.width;
    const int64_t count = part_.raw_bits ? m * width : m * (width + 1);
    RETURN_IF_ERROR(
        step.collective->AllReduceSum(part_.in, static_cast<size_t>(count), *step.stream));
    DeviceKernels::SumRows sum;
    sum.in = part_.in;
    sum.poison = part_.raw_bits ? nullptr : part_.in + m * width;
    sum.raw_bits = part_.raw_bits;
    sum.bias = part_.bias;
    sum.residual = residual_;
    sum.x = part_.y;
    sum.poisoned = step.poisoned;
    sum.m = m;
    sum.width = width;
    RETURN_IF_ERROR(step.kernels->Sum(sum, *step.stream));
    return step.kernels->Mark(step.progress, next_, *step.stream);
  }

 private:
  const AllReducePart part_;
  const float* const residual_;  // null: none
  const uint64_t next_;
};

absl::StatusOr<std::unique_ptr<DeviceOp>> Bind(const NodeGroup& group, DeviceBindContext& bind) {
  const Node& node = bind.graph().nodes(group.first);
  ASSIGN_OR_RETURN(AllReducePart part, BindAllReduce(node, bind));
  const float* residual = nullptr;
  if (group.count == 2) {
    const Node& add = bind.graph().nodes(group.first + 1);
    RETURN_IF_ERROR(NodeError(add, bind.ExpectValues(add, {Value::F32, Value::F32}, {Value::F32})));
    const uint32_t sum = node.outputs(0), out = add.outputs(0);
    const uint32_t other = add.inputs(0) == sum ? add.inputs(1) : add.inputs(0);
    if (bind.width(other) != part.width || bind.width(out) != part.width) {
      return NodeError(add,
                       absl::InvalidArgumentError("its inputs and its output differ in width"));
    }
    residual = bind.f32(other);
    part.y = bind.f32(out);
  }
  return std::make_unique<DeviceAllReduce>(part, residual, group.first + group.count);
}

const RegisterDeviceOp kRegistered(Node::kAllReduce, "all_reduce", &Bind);

}  // namespace
}  // namespace bitshard
