// all_reduce, with the residual_add that alone reads its output and the rms_norm of that: the
// ranks' values become one, then, in one launch, f32 with bias and residual, its norm and what the
// next matrices read. int64 sums have the poison counts of their tokens behind them; without
// --deterministic sums are f32, and those of embedding rows still int64. That launch begins when
// the ranks are through with each other, and tells the host's word how far the step has come.
#include "worker/ops/all_reduce.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "kernels/base/status_macros.h"
#include "worker/device/device_norm.h"
#include "worker/device/device_op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class DeviceAllReduce final : public DeviceOp {
 public:
  // `next`: the first node after the group.
  DeviceAllReduce(const AllReducePart& part, bool floats, const float* residual,
                  const std::optional<DeviceNorm>& norm, int next)
      : part_(part),
        floats_(floats),
        residual_(residual),
        norm_(norm),
        next_(static_cast<uint64_t>(next)) {}

  absl::Status Enqueue(const DeviceStep& step) override {
    const int64_t m = step.tokens, width = part_.width;
    DeviceSum sum;
    if (floats_) {
      float* const in = reinterpret_cast<float*>(part_.in);
      RETURN_IF_ERROR(
          step.collective->AllReduceSum(in, static_cast<size_t>(m * width), *step.stream));
      sum.floats = in;
    } else {
      const int64_t count = part_.raw_bits ? m * width : m * (width + 1);
      RETURN_IF_ERROR(
          step.collective->AllReduceSum(part_.in, static_cast<size_t>(count), *step.stream));
      sum.in = part_.in;
      sum.poison = part_.raw_bits ? nullptr : part_.in + m * width;
      sum.raw_bits = part_.raw_bits;
    }
    sum.bias = part_.bias;
    sum.residual = residual_;
    sum.x = part_.y;
    sum.poisoned = step.poisoned;
    sum.progress = step.progress;
    sum.mark = next_;
    sum.m = m;
    sum.width = width;
    if (!norm_.has_value()) return step.kernels->Sum(sum, *step.stream);
    DeviceNorm norm = *norm_;
    norm.sum = &sum;
    norm.m = m;
    return step.kernels->Norm(norm, *step.stream);
  }

 private:
  const AllReducePart part_;
  const bool floats_;
  const float* const residual_;  // null: none
  const std::optional<DeviceNorm> norm_;
  const uint64_t next_;
};

absl::StatusOr<std::unique_ptr<DeviceOp>> Bind(const NodeGroup& group, DeviceBindContext& bind) {
  const Node& node = bind.graph().nodes(group.first);
  ASSIGN_OR_RETURN(AllReducePart part, BindAllReduce(node, bind));
  const float* residual = nullptr;
  const int end = group.first + group.count;
  if (const Node& add = bind.graph().nodes(std::min(group.first + 1, end - 1));
      add.has_residual_add()) {
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
  const bool floats = !bind.options().deterministic && !part.raw_bits;
  std::optional<DeviceNorm> norm;
  if (const Node& last = bind.graph().nodes(end - 1); last.has_rms_norm()) {
    absl::StatusOr<DeviceNorm> bound = BindDeviceNorm(last, bind);
    RETURN_IF_ERROR(NodeError(last, bound.status()));
    norm = *bound;
  }
  return std::make_unique<DeviceAllReduce>(part, floats, residual, norm, end);
}

const RegisterDeviceOp kRegistered(Node::kAllReduce, "all_reduce", &Bind);

}  // namespace
}  // namespace bitshard
