#include "worker/ops/linear_parts.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"

namespace bitshard {

using internal::Node;
using internal::Value;

absl::Status LinearInput::Join(uint32_t value, int64_t cols, int64_t segment_cols, unsigned forms,
                               BindContext& bind) {
  bool leads = false;
  ASSIGN_OR_RETURN(
      shared, bind.ShareInput(value, bind.options().max_step_tokens, cols, segment_cols, &leads));
  leader |= leads;
  x = bind.f32(value);
  shared->forms |= forms;
  return absl::OkStatus();
}

absl::Status CheckLinear(const Node& node, const GraphValues& bind, int64_t* rows, int64_t* cols) {
  const internal::Linear& spec = node.linear();
  const bool segmented = spec.segment_cols() != 0;
  RETURN_IF_ERROR(
      bind.ExpectValues(node, {Value::F32}, {segmented ? Value::SEGMENT_SUM : Value::F32}));
  const uint32_t x = node.inputs(0), y = node.outputs(0);
  RETURN_IF_ERROR(bind.MatrixShape(spec.weight(), rows, cols));
  if (bind.width(x) != *cols || bind.width(y) != *rows) {
    return absl::InvalidArgumentError(absl::StrCat("its matrix is ", *rows, " x ", *cols,
                                                   ", its input has ", bind.width(x),
                                                   " columns, its output ", bind.width(y)));
  }
  if (segmented && (spec.has_bias() || spec.segment_cols() > INT32_MAX ||
                    spec.segments_total() == 0 || spec.segments_total() > INT32_MAX)) {
    return absl::InvalidArgumentError(
        "a row-parallel matrix has its bias in the AllReduce, and counts its segments");
  }
  if (!segmented && *cols == 0) return absl::InvalidArgumentError("its input has no columns");
  return absl::OkStatus();
}

absl::StatusOr<ColumnPart> BindColumnPart(const Node& node, BindContext& bind, LinearInput& input) {
  ColumnPart part;
  int64_t cols = 0;
  RETURN_IF_ERROR(CheckLinear(node, bind, &part.rows, &cols));
  const internal::Linear& spec = node.linear();
  ASSIGN_OR_RETURN(const PackedMatrix* weight, bind.Matrix(spec.weight()));
  part.y = bind.f32(node.outputs(0));
  if (weight == nullptr) return part;
  ASSIGN_OR_RETURN(BoundLinear linear,
                   BoundLinear::Bind(*weight, bind.options().activations, /*segment_cols=*/0,
                                     static_cast<int64_t>(spec.segments_total()),
                                     bind.options().isa, bind.options().kernel_order));
  RETURN_IF_ERROR(input.Join(node.inputs(0), cols, /*segment_cols=*/0, linear.forms(), bind));
  part.linear = std::make_unique<BoundLinear>(std::move(linear));
  if (spec.has_bias()) {
    ASSIGN_OR_RETURN(part.bias, bind.Vector(spec.bias(), part.rows));
  }
  return part;
}

}  // namespace bitshard
