// attention: appends the step's k and v to the paged cache, then attends causally over the cache as
// stored.
#include "worker/ops/attention.h"

#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class AttentionOp final : public Op {
 public:
  explicit AttentionOp(const AttentionPart& part) : part_(part) {}

  absl::Status Run(StepState& step) override {
    part_.shared->bound.AppendAndRun(step.rows, part_.values, /*rotation=*/nullptr,
                                     step.cache_layers[part_.layer], *step.pool);
    return absl::OkStatus();
  }

  std::vector<KernelChoice> Choices() const override { return {part_.shared->bound.choice()}; }

 private:
  const AttentionPart part_;
};

// A rank without heads of this layer.
class NoHeads final : public Op {
 public:
  absl::Status Run(StepState&) override { return absl::OkStatus(); }
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
  ASSIGN_OR_RETURN(const AttentionPart part, BindAttention(node, bind));
  if (part.shared == nullptr) return std::make_unique<NoHeads>();
  return std::make_unique<AttentionOp>(part);
}

const RegisterOp kRegistered(Node::kAttention, "attention", &Bind);

}  // namespace

absl::StatusOr<AttentionConfig> AttentionConfigOf(const Node& node, KvType cache_type,
                                                  GraphValues& bind) {
  RETURN_IF_ERROR(bind.ExpectValues(node, {Value::F32, Value::F32, Value::F32}, {Value::F32}));
  const internal::Attention& spec = node.attention();
  const uint32_t q = node.inputs(0), k = node.inputs(1), v = node.inputs(2), out = node.outputs(0);
  constexpr uint32_t kMax = 65536;
  if (spec.head_dim() == 0 || spec.head_dim() > kMax || spec.q_heads() > kMax ||
      spec.kv_heads() > kMax || !std::isfinite(spec.scale()) || spec.window() > INT32_MAX) {
    return absl::InvalidArgumentError("impossible heads, scale or window");
  }
  const int64_t q_width = int64_t{spec.q_heads()} * spec.head_dim();
  const int64_t kv_width = int64_t{spec.kv_heads()} * spec.head_dim();
  if (bind.width(q) != q_width || bind.width(out) != q_width || bind.width(k) != kv_width ||
      bind.width(v) != kv_width || spec.kv_head_of_q_size() != static_cast<int>(spec.q_heads())) {
    return absl::InvalidArgumentError(absl::StrCat(
        spec.q_heads(), " query and ", spec.kv_heads(), " key heads of ", spec.head_dim(),
        " do not fit values of width ", bind.width(q), ", ", bind.width(k), ", ", bind.width(v)));
  }
  AttentionConfig config;
  config.layout = {cache_type, static_cast<int>(spec.kv_heads()),
                   static_cast<int>(spec.head_dim())};
  config.q_heads = static_cast<int>(spec.q_heads());
  config.scale = spec.scale();
  config.window = static_cast<int>(spec.window());
  for (const uint32_t kv_head : spec.kv_head_of_q()) {
    if (kv_head >= spec.kv_heads()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a query head reads key head ", kv_head, " of ", spec.kv_heads()));
    }
    config.kv_head_of_q.push_back(static_cast<int>(kv_head));
  }
  RETURN_IF_ERROR(bind.AddCacheLayer(spec.kv_layer(), config.layout));
  return config;
}

absl::StatusOr<AttentionPart> BindAttention(const Node& node, BindContext& bind) {
  ASSIGN_OR_RETURN(const AttentionConfig config,
                   AttentionConfigOf(node, bind.options().cache_type, bind));
  const internal::Attention& spec = node.attention();
  const uint32_t q = node.inputs(0), k = node.inputs(1), v = node.inputs(2), out = node.outputs(0);
  AttentionPart part;
  if (spec.q_heads() == 0) return part;
  const int64_t q_width = bind.width(q), kv_width = bind.width(k);
  ASSIGN_OR_RETURN(part.shared, bind.Attention(config));
  part.layer = spec.kv_layer();
  part.values = {.q = bind.f32(q),
                 .q_stride = q_width,
                 .k = bind.f32(k),
                 .v = bind.f32(v),
                 .kv_stride = kv_width,
                 .out = bind.f32(out),
                 .out_stride = q_width};
  return part;
}

}  // namespace bitshard
