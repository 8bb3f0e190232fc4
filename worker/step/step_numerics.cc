#include "worker/step/step_numerics.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

#include "kernels/tensor/kv_type_by_name.h"
#include "proto/cache_type.h"

namespace bitshard {
namespace {

using internal::NumericsOptions;

// Bounds on what a coordinator may ask for; the buffers follow from them. A linear op on a GPU has
// no more rows.
constexpr uint32_t kMaxStepTokens = 65535;
constexpr uint32_t kMaxSlots = 1 << 14;

// Width of what lm_head reads. The graph has not been checked yet: 0 when there is none.
uint32_t FinalHiddenSize(const internal::ModelGraph& graph) {
  uint64_t width = 0;
  for (const internal::Node& node : graph.nodes()) {
    if (!node.has_lm_head() || node.inputs_size() == 0) continue;
    if (node.inputs(0) >= static_cast<uint32_t>(graph.values_size())) continue;
    width = graph.values(static_cast<int>(node.inputs(0))).width();
  }
  return static_cast<uint32_t>(std::min<uint64_t>(width, INT32_MAX));
}

}  // namespace

absl::Status CheckStepNumerics(const internal::RankPlan& plan, const NumericsOptions& numerics) {
  if (numerics.block_tokens() != kKvBlockTokens) {
    return absl::UnimplementedError(
        absl::StrCat("numerics: cache blocks of ", numerics.block_tokens(),
                     " tokens; this worker has blocks of ", kKvBlockTokens));
  }
  if (numerics.max_step_tokens() == 0 || numerics.max_step_tokens() > kMaxStepTokens ||
      numerics.max_slots() == 0 || numerics.max_slots() > kMaxSlots) {
    return absl::InvalidArgumentError(
        absl::StrCat("numerics: ", numerics.max_step_tokens(), " tokens a step (1 to ",
                     kMaxStepTokens, "), ", numerics.max_slots(), " slots (1 to ", kMaxSlots, ")"));
  }
  if (plan.world() == 0 || plan.rank() >= plan.world()) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan of rank ", plan.rank(), " of ", plan.world()));
  }
  return absl::OkStatus();
}

absl::StatusOr<KvType> CacheTypeOf(const NumericsOptions& numerics) {
  const std::optional<KvType> type = KvTypeByName(CacheTypeName(numerics.kv_cache_type()));
  if (type) return *type;
  return absl::UnimplementedError(
      "numerics: the KV cache type must be bf16, f32, f16, int8 or fp8_e4m3");
}

SlotLimits SlotLimitsOf(const internal::ModelGraph& graph, const NumericsOptions& numerics) {
  SlotLimits limits;
  limits.max_slots = numerics.max_slots();
  limits.max_step_tokens = numerics.max_step_tokens();
  limits.context_tokens = static_cast<uint32_t>(graph.context_length());
  limits.vocab_size = static_cast<uint32_t>(graph.vocab_size());
  limits.block_tokens = numerics.block_tokens();
  limits.hidden_size = FinalHiddenSize(graph);
  return limits;
}

}  // namespace bitshard
