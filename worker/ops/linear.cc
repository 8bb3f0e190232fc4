// linear: y = W x (+ bias), or with segments the row-parallel form whose int64 sums and poison
// counts AllReduce adds up over the ranks.
//
// Linear nodes in a row that read the same value (q | k | v, gate | up) share its prepared form;
// the first makes it.
#include "kernels/registry/linear.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "kernels/registry/elementwise.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

// The input of a linear op: its values, and where they are prepared.
struct Input {
  const float* x = nullptr;
  int64_t cols = 0;
  int64_t segment_cols = 0;
  SharedInput* shared = nullptr;
  bool leader = false;
  Isa isa = Isa::kScalar;

  void Prepare(StepState& step) const {
    if (!leader) return;
    shared->prepared->Prepare(x, step.count(), cols, cols, segment_cols, shared->forms, isa,
                              *step.pool);
  }
};

std::string Describe(const BoundLinear& linear) {
  return absl::StrCat(linear.weight().spec().Describe(), ": ", linear.kernel(),
                      linear.reason().empty() ? "" : absl::StrCat(" (", linear.reason(), ")"));
}

class ColumnParallel final : public Op {
 public:
  ColumnParallel(BoundLinear linear, Input input, const float* bias, int64_t rows, float* y)
      : linear_(std::move(linear)), input_(input), bias_(bias), rows_(rows), y_(y) {}

  absl::Status Run(StepState& step) override {
    input_.Prepare(step);
    linear_.Run(*input_.shared->prepared, y_, rows_, *step.pool);
    if (bias_ != nullptr) AddBias(bias_, step.count(), rows_, y_, rows_, *step.pool);
    return absl::OkStatus();
  }

  std::string Describe() const override { return bitshard::Describe(linear_); }

 private:
  const BoundLinear linear_;
  const Input input_;
  const float* const bias_;  // null: none
  const int64_t rows_;
  float* const y_;
};

class RowParallel final : public Op {
 public:
  RowParallel(BoundLinear linear, Input input, int64_t rows, int64_t* sums)
      : linear_(std::move(linear)), input_(input), rows_(rows), sums_(sums) {}

  absl::Status Run(StepState& step) override {
    int64_t* const poison = sums_ + step.count() * rows_;
    std::fill_n(poison, step.count(), 0);
    input_.Prepare(step);
    linear_.RunSegments(*input_.shared->prepared, sums_, rows_, poison, *step.pool);
    return absl::OkStatus();
  }

  std::string Describe() const override { return bitshard::Describe(linear_); }

 private:
  const BoundLinear linear_;
  const Input input_;
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
  const bool segmented = spec.segment_cols() != 0;
  RETURN_IF_ERROR(
      bind.ExpectValues(node, {Value::F32}, {segmented ? Value::SEGMENT_SUM : Value::F32}));
  const uint32_t x = node.inputs(0), y = node.outputs(0);
  int64_t rows = 0, cols = 0;
  RETURN_IF_ERROR(bind.MatrixShape(spec.weight(), &rows, &cols));
  if (bind.width(x) != cols || bind.width(y) != rows) {
    return absl::InvalidArgumentError(absl::StrCat("its matrix is ", rows, " x ", cols,
                                                   ", its input has ", bind.width(x),
                                                   " columns, its output ", bind.width(y)));
  }
  if (segmented && (spec.has_bias() || spec.segment_cols() > INT32_MAX ||
                    spec.segments_total() == 0 || spec.segments_total() > INT32_MAX)) {
    return absl::InvalidArgumentError(
        "a row-parallel matrix has its bias in the AllReduce, and counts its segments");
  }
  if (!segmented && cols == 0) return absl::InvalidArgumentError("its input has no columns");
  ASSIGN_OR_RETURN(const PackedMatrix* weight, bind.Matrix(spec.weight()));
  if (weight == nullptr && segmented) return std::make_unique<NoColumns>(rows, bind.i64(y));
  if (weight == nullptr) return std::make_unique<NoRows>();

  const int64_t segment_cols = static_cast<int64_t>(spec.segment_cols());
  ASSIGN_OR_RETURN(
      BoundLinear linear,
      BoundLinear::Bind(*weight, bind.options().activations, segment_cols,
                        static_cast<int64_t>(spec.segments_total()), bind.options().isa));
  Input input;
  input.x = bind.f32(x);
  input.cols = cols;
  input.segment_cols = segment_cols;
  input.isa = bind.options().isa;
  ASSIGN_OR_RETURN(input.shared, bind.ShareInput(x, bind.options().max_step_tokens, cols,
                                                 segment_cols, &input.leader));
  input.shared->forms |= linear.forms();
  if (segmented) {
    return std::make_unique<RowParallel>(std::move(linear), input, rows, bind.i64(y));
  }
  const float* bias = nullptr;
  if (spec.has_bias()) {
    ASSIGN_OR_RETURN(const std::vector<float>* values, bind.Vector(spec.bias(), rows));
    bias = values->data();
  }
  return std::make_unique<ColumnParallel>(std::move(linear), input, bias, rows, bind.f32(y));
}

const RegisterOp kRegistered(Node::kLinear, "linear", &BindLinear);

}  // namespace
}  // namespace bitshard
