// Fusion: the ropes of q and k and the attention that reads them. Keys are rotated on their way
// into the cache and queries on their way into the scores; the rotated values are never stored. The
// angles of a step's tokens are computed once for all layers.
#include <memory>

#include "kernels/base/status_macros.h"
#include "worker/ops/attention.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/fusion.h"
#include "worker/ops/op.h"
#include "worker/ops/rope.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class RopeAttention final : public Op {
 public:
  // `leader`: the first of the graph with these angles.
  RopeAttention(const AttentionPart& part, SharedAngles* angles, bool leader)
      : part_(part), angles_(angles), leader_(leader) {}

  absl::Status Run(StepState& step) override {
    if (leader_) angles_->Compute(step.positions, *step.pool);
    if (part_.shared == nullptr) return absl::OkStatus();  // no heads here
    part_.shared->bound.AppendAndRun(step.rows, part_.values, &angles_->rotation,
                                     step.cache_layers[part_.layer], *step.pool);
    return absl::OkStatus();
  }

  std::vector<KernelChoice> ChoicesOf(int member) const override {
    if (member != 2 || part_.shared == nullptr) return {};
    return {part_.shared->bound.choice()};
  }

 private:
  const AttentionPart part_;
  SharedAngles* const angles_;
  const bool leader_;
};

int Match(const GraphView& graph, int first) { return IsRopeAttention(graph, first) ? 3 : 0; }

absl::StatusOr<std::unique_ptr<Op>> Bind(absl::Span<const Node* const> nodes, BindContext& bind) {
  const Node& attention = *nodes[2];
  absl::StatusOr<AttentionPart> part = BindAttention(attention, bind);
  RETURN_IF_ERROR(NodeError(attention, part.status()));
  SharedAngles* angles = nullptr;
  bool leader = false;
  for (const Node* node : nodes.subspan(0, 2)) {
    RETURN_IF_ERROR(NodeError(*node, CheckRope(*node, bind)));
    const absl::StatusOr<RopeConfig> config = RopeConfigOf(node->rope(), bind);
    RETURN_IF_ERROR(NodeError(*node, config.status()));
    bool first = false;
    absl::StatusOr<SharedAngles*> shared = bind.Angles(*config, &first);
    RETURN_IF_ERROR(NodeError(*node, shared.status()));
    angles = *shared;
    leader |= first;
    const float* in = bind.f32(node->inputs(0));
    (node->outputs(0) == attention.inputs(0) ? part->values.q : part->values.k) = in;
  }
  return std::make_unique<RopeAttention>(*part, angles, leader);
}

const RegisterFusion kRegistered("rope_attention", &Match, &Bind);

}  // namespace
}  // namespace bitshard
