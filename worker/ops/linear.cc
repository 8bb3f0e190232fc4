// linear: y = W x (+ bias), or with segments the row-parallel form whose int64 sums and poison
// counts AllReduce adds up over the ranks.
//
// Linear nodes in a row that read the same value (q | k | v, gate | up) share its prepared form,
// and usually run together (linear_group.cc).
#include "kernels/registry/linear.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/linear_parts.h"
#include "worker/ops/op.h"

namespace bitshard {
namespace {

using internal::Node;

class ColumnParallel final : public Op {
 public:
  ColumnParallel(ColumnPart part, LinearInput input)
      : part_(std::move(part)), group_({part_.Member()}), input_(input) {}

  absl::Status Run(StepState& step) override {
    input_.Prepare(step);
    group_.Run(*input_.shared->prepared, *step.pool);
    return absl::OkStatus();
  }

  void Prefetch() const override { group_.Prefetch(); }

  std::vector<KernelChoice> Choices() const override { return {part_.linear->choice()}; }

 private:
  const ColumnPart part_;
  const LinearGroup group_;
  const LinearInput input_;
};

class RowParallel final : public Op {
 public:
  RowParallel(BoundLinear linear, LinearInput input, int64_t rows, int64_t* sums)
      : linear_(std::move(linear)), input_(input), rows_(rows), sums_(sums) {}

  absl::Status Run(StepState& step) override {
    int64_t* const poison = sums_ + step.count() * rows_;
    std::fill_n(poison, step.count(), 0);
    input_.Prepare(step);
    linear_.RunSegments(*input_.shared->prepared, sums_, rows_, poison, *step.pool);
    return absl::OkStatus();
  }

  void Prefetch() const override { linear_.Prefetch(); }

  std::vector<KernelChoice> Choices() const override { return {linear_.choice()}; }

 private:
  const BoundLinear linear_;
  const LinearInput input_;
  const int64_t rows_;
  int64_t* const sums_;
};

// A rank without columns of a row-parallel matrix adds nothing.
class NoColumns final : public Op {
 public:
  NoColumns(int64_t rows, int64_t* sums) : rows_(rows), sums_(sums) {}

  absl::Status Run(StepState& step) override {
    std::fill_n(sums_, step.count() * (rows_ + 1), 0);
    return absl::OkStatus();
  }

 private:
  const int64_t rows_;
  int64_t* const sums_;
};

// A rank without rows of a column-parallel matrix has nothing to compute.
class NoRows final : public Op {
 public:
  absl::Status Run(StepState&) override { return absl::OkStatus(); }
};

absl::StatusOr<std::unique_ptr<Op>> BindLinear(const Node& node, BindContext& bind) {
  const internal::Linear& spec = node.linear();
  LinearInput input;
  if (spec.segment_cols() == 0) {
    ASSIGN_OR_RETURN(ColumnPart part, BindColumnPart(node, bind, input));
    if (part.linear == nullptr) return std::make_unique<NoRows>();
    return std::make_unique<ColumnParallel>(std::move(part), input);
  }
  int64_t rows = 0, cols = 0;
  RETURN_IF_ERROR(CheckLinear(node, bind, &rows, &cols));
  ASSIGN_OR_RETURN(const PackedMatrix* weight, bind.Matrix(spec.weight()));
  int64_t* const sums = bind.i64(node.outputs(0));
  if (weight == nullptr) return std::make_unique<NoColumns>(rows, sums);
  const int64_t segment_cols = static_cast<int64_t>(spec.segment_cols());
  ASSIGN_OR_RETURN(BoundLinear linear,
                   BoundLinear::Bind(*weight, bind.options().activations, segment_cols,
                                     static_cast<int64_t>(spec.segments_total()),
                                     bind.options().isa, bind.options().kernel_order));
  RETURN_IF_ERROR(input.Join(node.inputs(0), cols, segment_cols, linear.forms(), bind));
  return std::make_unique<RowParallel>(std::move(linear), input, rows, sums);
}

const RegisterOp kRegistered(Node::kLinear, "linear", &BindLinear);

}  // namespace
}  // namespace bitshard
