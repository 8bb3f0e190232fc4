// Fusion: linear nodes in a row that read the same value (q | k | v, gate | up) in one parallel
// region. When a gated_act reads just the two of them it comes in too, and so does preparing what
// it gives: a thread that has made some columns of gate and up activates and quantizes them while
// they are in its cache.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "kernels/registry/elementwise.h"
#include "kernels/registry/linear.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/fusion.h"
#include "worker/ops/gated_act.h"
#include "worker/ops/linear_parts.h"
#include "worker/ops/op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

// Columns of gate and up that are made together where down_proj does not say: one segment of most
// models.
constexpr int64_t kUnitCols = 64;
// Longest segments whose columns are worth keeping together.
constexpr int64_t kMostSegmentCols = 512;

class LinearGroupOp : public Op {
 public:
  LinearGroupOp(std::vector<ColumnPart> parts, LinearInput input)
      : parts_(std::move(parts)), group_(Members(parts_)), input_(input) {}

  absl::Status Run(StepState& step) override {
    if (group_.members().empty()) return absl::OkStatus();
    input_.Prepare(step);
    group_.Run(*input_.shared->prepared, *step.pool);
    return absl::OkStatus();
  }

  void Prefetch() const override { group_.Prefetch(); }

  std::vector<KernelChoice> ChoicesOf(int member) const override {
    const size_t i = static_cast<size_t>(member);
    if (i >= parts_.size() || parts_[i].linear == nullptr) return {};
    return {parts_[i].linear->choice()};
  }

 protected:
  static std::vector<LinearGroup::Member> Members(const std::vector<ColumnPart>& parts) {
    std::vector<LinearGroup::Member> members;
    for (const ColumnPart& part : parts) {
      if (part.linear != nullptr) members.push_back(part.Member());
    }
    return members;
  }

  const std::vector<ColumnPart> parts_;
  const LinearGroup group_;
  const LinearInput input_;
};

class GatedLinear final : public LinearGroupOp {
 public:
  GatedLinear(std::vector<ColumnPart> parts, LinearInput input, const GatedActPart& act, Isa isa,
              const Handover* handover)
      : LinearGroupOp(std::move(parts), input),
        act_(act),
        isa_(isa),
        run_act_(ChooseRowKernels(isa).gated_act),
        handover_(handover) {}

  absl::Status Run(StepState& step) override {
    if (group_.members().empty()) return absl::OkStatus();
    input_.Prepare(step);
    const SharedInput* const next = handover_->shared;
    if (next != nullptr) next->Begin(step.count());
    const int64_t unit = next != nullptr ? next->segment_cols : kUnitCols;
    const int64_t rows = step.count(), width = act_.width;
    group_.RunInUnits(
        *input_.shared->prepared, unit,
        [&](int64_t begin, int64_t end) {
          for (int64_t r = 0; r < rows; ++r) {
            const int64_t at = r * width + begin;
            run_act_(act_.activation, act_.gate + at, act_.up + at, end - begin, act_.out + at);
            if (next != nullptr) next->prepared->PrepareSegments(r, begin, end, act_.out + at);
          }
        },
        *step.pool);
    return absl::OkStatus();
  }

  std::vector<KernelChoice> ChoicesOf(int member) const override {
    if (static_cast<size_t>(member) < parts_.size()) return LinearGroupOp::ChoicesOf(member);
    return {ElementwiseChoice("gated_act", isa_)};
  }

 private:
  const GatedActPart act_;
  const Isa isa_;
  void (*const run_act_)(Activation, const float*, const float*, int64_t, float*);
  const Handover* const handover_;
};

// A linear node that is not cut along K; what is wrong with it its binding will say.
bool IsColumnParallel(const Node* node) {
  return node != nullptr && node->has_linear() && node->linear().segment_cols() == 0 &&
         node->inputs_size() == 1 && node->outputs_size() == 1;
}

bool IsGateOf(const GraphView& graph, const Node* act, const Node* a, const Node* b) {
  if (act == nullptr || !act->has_gated_act() || act->inputs_size() != 2) return false;
  const uint32_t first = a->outputs(0), second = b->outputs(0);
  const bool both = (act->inputs(0) == first && act->inputs(1) == second) ||
                    (act->inputs(0) == second && act->inputs(1) == first);
  return both && first != second && graph.reads(first) == 1 && graph.reads(second) == 1;
}

int Match(const GraphView& graph, int first) {
  const Node* head = graph.node(first);
  if (!IsColumnParallel(head)) return 0;
  int count = 1;
  while (count < static_cast<int>(LinearGroup::kMaxMembers)) {
    const Node* next = graph.node(first + count);
    if (!IsColumnParallel(next) || next->inputs(0) != head->inputs(0)) break;
    ++count;
  }
  if (count == 2 && IsGateOf(graph, graph.node(first + 2), head, graph.node(first + 1))) ++count;
  return count;
}

absl::StatusOr<std::unique_ptr<Op>> Bind(absl::Span<const Node* const> nodes, BindContext& bind) {
  std::vector<ColumnPart> parts;
  LinearInput input;
  for (const Node* node : nodes) {
    if (!node->has_linear()) break;
    absl::StatusOr<ColumnPart> part = BindColumnPart(*node, bind, input);
    RETURN_IF_ERROR(NodeError(*node, part.status()));
    parts.push_back(*std::move(part));
  }
  if (parts.size() == nodes.size()) {
    return std::make_unique<LinearGroupOp>(std::move(parts), input);
  }
  const Node& last = *nodes.back();
  const absl::StatusOr<GatedActPart> act = BindGatedAct(last, bind);
  RETURN_IF_ERROR(NodeError(last, act.status()));
  const Handover* handover = bind.OfferPrepared(last.outputs(0), kMostSegmentCols);
  return std::make_unique<GatedLinear>(std::move(parts), input, *act, bind.options().isa, handover);
}

const RegisterFusion kRegistered("linear_group", &Match, &Bind);

}  // namespace
}  // namespace bitshard
