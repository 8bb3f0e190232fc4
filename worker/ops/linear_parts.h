// What the ops over linear nodes have in common: the shared prepared input, and a column-parallel
// matrix with its output.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "kernels/registry/linear.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/op.h"

namespace bitshard {

// The input of a linear op: its values, and where they are prepared.
struct LinearInput {
  const float* x = nullptr;
  SharedInput* shared = nullptr;  // null: nothing to read here
  bool leader = false;            // prepares it

  void Prepare(StepState& step) const {
    if (!leader) return;
    shared->prepared->Prepare(x, step.count(), shared->cols, shared->cols, shared->segment_cols,
                              shared->forms, shared->isa, *step.pool);
  }

  // For the next matrix that reads `value`. A leader stays one.
  absl::Status Join(uint32_t value, int64_t cols, int64_t segment_cols, unsigned forms,
                    BindContext& bind);
};

struct ColumnPart {
  std::unique_ptr<BoundLinear> linear;  // null: this rank has no rows of it
  int64_t rows = 0;
  float* y = nullptr;           // [tokens, rows]
  const float* bias = nullptr;  // null: none

  LinearGroup::Member Member() const { return {linear.get(), y, rows, bias}; }
};

// Checks a linear node and its weight: `segmented` as its spec says. `rows` and `cols` (out) are
// the graph's.
absl::Status CheckLinear(const internal::Node& node, const GraphValues& bind, int64_t* rows,
                         int64_t* cols);

// Of a node without segments; its input joins `input`.
absl::StatusOr<ColumnPart> BindColumnPart(const internal::Node& node, BindContext& bind,
                                          LinearInput& input);

}  // namespace bitshard
