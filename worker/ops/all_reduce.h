// An all_reduce node bound to its values; for the op of its own and for the one with what follows.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/registry/elementwise.h"
#include "worker/ops/graph_values.h"
#include "worker/ops/op.h"

namespace bitshard {

struct AllReducePart {
  bool raw_bits = false;  // not sums: bits of f32
  int64_t* in = nullptr;  // [tokens, width], poison counts of sums behind them
  int64_t width = 0;
  const float* bias = nullptr;  // null: none
  float* y = nullptr;           // [tokens, width]

  // The collective, and what it says of poisoned tokens.
  absl::Status Reduce(StepState& step) const;
  // out[width] = residual (null: none) + (f32 of token `row` + bias); a poisoned one is NaN. `out`
  // may be the residual.
  void Row(const StepState& step, int64_t row, const float* residual, const RowKernels& kernels,
           float* out) const;
  // Of Row, for Op::Choices: raw bits are only copied.
  std::vector<KernelChoice> Choices(Isa isa) const;
};

absl::StatusOr<AllReducePart> BindAllReduce(const internal::Node& node, GraphValues& bind);

}  // namespace bitshard
