#include "worker/step/step_work.h"

namespace bitshard {

StepWork::StepWork(const internal::ModelGraph& graph, const LoadedWeights& weights,
                   uint64_t block_bytes, uint32_t block_tokens)
    : block_bytes_(block_bytes), block_tokens_(block_tokens) {
  for (const internal::Node& node : graph.nodes()) {
    const bool head = node.has_lm_head();
    if (!head && !node.has_linear()) continue;
    const uint32_t weight = head ? node.lm_head().weight() : node.linear().weight();
    if (weight >= weights.matrix_count()) continue;
    const PackedSpec& spec = weights.SpecOf(weight);
    const uint64_t flops = 2 * spec.rows * spec.cols;
    (head ? output_bytes_ : token_bytes_) += weights.BytesOf(weight);
    (head ? output_flops_ : token_flops_) += flops;
  }
}

StepWork::Amount StepWork::Of(const internal::StepPlan& plan) const {
  uint64_t tokens = 0, outputs = 0, blocks = 0;
  for (int row = 0; row < plan.n_tokens_size(); ++row) {
    tokens += plan.n_tokens(row);
    if (plan.flags(row) & internal::ROW_SAMPLE) ++outputs;
    if (plan.flags(row) & internal::ROW_SCORE) outputs += plan.n_tokens(row);
    blocks += (plan.start(row) + plan.n_tokens(row) + block_tokens_ - 1) / block_tokens_;
  }
  Amount amount;
  if (tokens == 0) return amount;
  amount.read_bytes = token_bytes_ + (outputs > 0 ? output_bytes_ : 0) + blocks * block_bytes_;
  amount.flops = tokens * token_flops_ + outputs * output_flops_;
  return amount;
}

}  // namespace bitshard
