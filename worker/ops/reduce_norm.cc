// Fusion: all_reduce, the residual_add that reads its output, and the rms_norm of the sum. After
// the collective every token's row goes once through the cache: sums to f32, bias, residual, norm,
// and the forms that the next linear nodes read.
#include <cmath>
#include <limits>
#include <memory>

#include "kernels/base/status_macros.h"
#include "kernels/registry/elementwise.h"
#include "kernels/registry/reduction.h"
#include "worker/ops/all_reduce.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/fusion.h"
#include "worker/ops/op.h"
#include "worker/ops/rms_norm.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class ReduceNorm final : public Op {
 public:
  struct Parts {
    AllReducePart reduce;             // its y is where the sum goes
    const float* residual = nullptr;  // null: none
    bool has_norm = false;
    RmsNormPart norm;
    uint32_t norm_value = 0;
    Handover* handover = nullptr;  // of the norm
    float* rows = nullptr;         // [threads, width]: a norm that only goes into prepared forms
  };

  ReduceNorm(const Parts& parts, const BindContext& bind)
      : parts_(parts), bind_(bind), kernels_(ChooseRowKernels(bind.options().isa)) {}

  absl::Status Run(StepState& step) override {
    const int64_t rows = step.count(), width = parts_.reduce.width;
    RETURN_IF_ERROR(parts_.reduce.Reduce(step));
    const SharedInput* const next = parts_.has_norm ? parts_.handover->shared : nullptr;
    if (next != nullptr) next->Begin(rows);
    const bool keep = parts_.has_norm && bind_.ReadElsewhere(parts_.norm_value, *parts_.handover);
    step.pool->ParallelFor(rows, [&](int64_t r, int thread) {
      float* const x = parts_.reduce.y + r * width;
      const float* residual = parts_.residual == nullptr ? nullptr : parts_.residual + r * width;
      parts_.reduce.Row(step, r, residual, kernels_, x);
      if (!parts_.has_norm) return;
      float* const y = keep ? parts_.norm.y + r * width : parts_.rows + thread * width;
      kernels_.rms_norm(x, parts_.norm.weight, parts_.norm.epsilon, width, y);
      if (next != nullptr) next->prepared->PrepareRow(r, y);
    });
    return absl::OkStatus();
  }

  void Prefetch() const override {
    constexpr int64_t kLineFloats = 16;
    if (!parts_.has_norm) return;
    for (int64_t i = 0; i < parts_.norm.width; i += kLineFloats)
      __builtin_prefetch(parts_.norm.weight + i);
  }

  std::vector<KernelChoice> ChoicesOf(int member) const override {
    if (member == 0) return parts_.reduce.Choices(bind_.options().isa);
    const int norm = parts_.residual == nullptr ? 1 : 2;
    if (!parts_.has_norm || member != norm) return {};
    return {ElementwiseChoice("rms_norm", bind_.options().isa)};
  }

 private:
  const Parts parts_;
  const BindContext& bind_;
  const RowKernels kernels_;
};

bool IsUnary(const Node* node) {
  return node != nullptr && node->inputs_size() == 1 && node->outputs_size() == 1;
}

// Adds `value` to something else, and nobody else reads it.
bool IsResidualOf(const GraphView& graph, const Node* node, uint32_t value) {
  return node != nullptr && node->has_residual_add() && node->inputs_size() == 2 &&
         node->outputs_size() == 1 && (node->inputs(0) == value || node->inputs(1) == value) &&
         graph.reads(value) == 1;
}

int Match(const GraphView& graph, int first) {
  const Node* reduce = graph.node(first);
  if (!IsUnary(reduce) || !reduce->has_all_reduce()) return 0;
  int count = 1;
  uint32_t sum = reduce->outputs(0);
  if (IsResidualOf(graph, graph.node(first + count), sum)) {
    sum = graph.node(first + count)->outputs(0);
    ++count;
  }
  const Node* norm = graph.node(first + count);
  if (IsUnary(norm) && norm->has_rms_norm() && norm->inputs(0) == sum) ++count;
  return count;
}

absl::StatusOr<std::unique_ptr<Op>> Bind(absl::Span<const Node* const> nodes, BindContext& bind) {
  ReduceNorm::Parts parts;
  const absl::StatusOr<AllReducePart> reduce = BindAllReduce(*nodes[0], bind);
  RETURN_IF_ERROR(NodeError(*nodes[0], reduce.status()));
  parts.reduce = *reduce;
  for (const Node* node : nodes.subspan(1)) {
    if (node->has_residual_add()) {
      RETURN_IF_ERROR(
          NodeError(*node, bind.ExpectValues(*node, {Value::F32, Value::F32}, {Value::F32})));
      const uint32_t sum = nodes[0]->outputs(0), out = node->outputs(0);
      const uint32_t other = node->inputs(0) == sum ? node->inputs(1) : node->inputs(0);
      if (bind.width(other) != parts.reduce.width || bind.width(out) != parts.reduce.width) {
        return NodeError(*node,
                         absl::InvalidArgumentError("its inputs and its output differ in width"));
      }
      parts.residual = bind.f32(other);
      parts.reduce.y = bind.f32(out);
    } else {
      const absl::StatusOr<RmsNormPart> norm = BindRmsNorm(*node, bind);
      RETURN_IF_ERROR(NodeError(*node, norm.status()));
      parts.has_norm = true;
      parts.norm = *norm;
      parts.norm_value = node->outputs(0);
      parts.handover = bind.OfferPrepared(parts.norm_value);
      ASSIGN_OR_RETURN(parts.rows, bind.Scratch(bind.options().threads, parts.norm.width));
    }
  }
  return std::make_unique<ReduceNorm>(parts, bind);
}

const RegisterFusion kRegistered("reduce_norm", &Match, &Bind);

}  // namespace
}  // namespace bitshard
