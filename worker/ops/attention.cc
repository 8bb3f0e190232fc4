// attention: appends the step's k and v to the paged cache, then attends causally over the cache as
// stored.
#include "kernels/registry/attention.h"

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
  struct Views {
    const float* q;
    const float* k;
    const float* v;
    float* out;
    int64_t q_width;   // of q and out
    int64_t kv_width;  // of k and v
  };

  AttentionOp(SharedAttention* attention, uint32_t layer, const Views& views)
      : attention_(attention), layer_(layer), views_(views) {}

  absl::Status Run(StepState& step) override {
    uint8_t* const cache = step.cache_layers[layer_];
    attention_->bound.Append(step.rows, views_.k, views_.v, views_.kv_width, cache, *step.pool);
    attention_->bound.Run(step.rows, views_.q, views_.q_width, cache, views_.out, views_.q_width,
                          *step.pool);
    return absl::OkStatus();
  }

  std::string Describe() const override {
    const BoundAttention& bound = attention_->bound;
    return absl::StrCat("kv ",
                        attention_->config.layout.type == KvType::kF32    ? "f32"
                        : attention_->config.layout.type == KvType::kBf16 ? "bf16"
                                                                          : "f16",
                        ": ", bound.kernel(),
                        bound.reason().empty() ? "" : absl::StrCat(" (", bound.reason(), ")"));
  }

 private:
  SharedAttention* const attention_;
  const uint32_t layer_;
  const Views views_;
};

// A rank without heads of this layer.
class NoHeads final : public Op {
 public:
  absl::Status Run(StepState&) override { return absl::OkStatus(); }
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
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
  config.layout = {bind.options().cache_type, static_cast<int>(spec.kv_heads()),
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
  if (spec.q_heads() == 0) return std::make_unique<NoHeads>();
  ASSIGN_OR_RETURN(SharedAttention * attention, bind.Attention(config));
  return std::make_unique<AttentionOp>(
      attention, spec.kv_layer(),
      AttentionOp::Views{bind.f32(q), bind.f32(k), bind.f32(v), bind.f32(out), q_width, kv_width});
}

const RegisterOp kRegistered(Node::kAttention, "attention", &Bind);

}  // namespace
}  // namespace bitshard
