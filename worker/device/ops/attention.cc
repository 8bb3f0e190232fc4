// attention, with the ropes of q and k that it alone reads: rotates both and appends the step's k
// and v to the paged cache in one launch, then attends causally over the cache as stored.
#include "worker/ops/attention.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "worker/device/device_attention.h"
#include "worker/device/device_op.h"
#include "worker/ops/rope.h"

namespace bitshard {
namespace {

using internal::Node;

class DeviceAttentionOp final : public DeviceOp {
 public:
  struct Values {
    const float* q_in = nullptr;  // q before it is rotated, often in the same place
    float* q = nullptr;
    const float* k = nullptr;
    const float* v = nullptr;
    float* out = nullptr;
    int64_t q_width = 0, kv_width = 0;
  };

  // `member`: the attention's node in the group.
  DeviceAttentionOp(const DeviceAttention& attention, KernelChoice choice, int member,
                    uint32_t layer, const std::optional<DeviceRope>& rope, const Values& values,
                    const DeviceBindContext& bind)
      : attention_(attention),
        choice_(std::move(choice)),
        member_(member),
        layer_(layer),
        rope_(rope),
        values_(values),
        bind_(bind) {}

  absl::Status Enqueue(const DeviceStep& step) override {
    DeviceAttention attention = attention_;
    attention.cache = step.cache_layers[layer_];
    attention.scratch = bind_.attention_scratch();
    attention.scratch_bytes = bind_.attention_scratch_bytes();
    attention.max_context = step.max_context;
    DeviceAppend append;
    append.k = values_.k;
    append.v = values_.v;
    append.stride = values_.kv_width;
    if (rope_.has_value()) {
      if (values_.q_in != values_.q) {
        const size_t bytes = static_cast<size_t>(step.tokens * values_.q_width) * sizeof(float);
        RETURN_IF_ERROR(step.device->Copy(values_.q, values_.q_in, bytes, *step.stream));
      }
      append.rope = &*rope_;
      append.q = values_.q;
      append.q_stride = values_.q_width;
    }
    RETURN_IF_ERROR(
        step.kernels->Append(attention, append, step.arrays, step.tokens, *step.stream));
    return step.kernels->Attend(attention, values_.q, values_.q_width, values_.out, values_.q_width,
                                step.arrays, step.tokens, *step.stream);
  }

  std::vector<KernelChoice> ChoicesOf(int member) const override {
    if (member != member_) return {};
    return {choice_};
  }

 private:
  const DeviceAttention attention_;
  const KernelChoice choice_;
  const int member_;
  const uint32_t layer_;  // of the cache
  const std::optional<DeviceRope> rope_;
  const Values values_;
  const DeviceBindContext& bind_;
};

// A rank without heads of this layer.
class NoDeviceHeads final : public DeviceOp {
 public:
  absl::Status Enqueue(const DeviceStep&) override { return absl::OkStatus(); }
};

// How the ropes [first, end) rotate; what they read takes the place of the attention's q and k.
absl::StatusOr<std::optional<DeviceRope>> BindRopes(int first, int end, const Node& attention,
                                                    DeviceAttentionOp::Values& values,
                                                    DeviceBindContext& bind) {
  std::optional<DeviceRope> rope;
  for (int n = first; n < end; ++n) {
    const Node& node = bind.graph().nodes(n);
    RETURN_IF_ERROR(NodeError(node, CheckRope(node, bind)));
    const absl::StatusOr<RopeConfig> config = RopeConfigOf(node.rope(), bind);
    RETURN_IF_ERROR(NodeError(node, config.status()));
    const absl::StatusOr<DeviceRope> bound = bind.Rope(*config);
    RETURN_IF_ERROR(NodeError(node, bound.status()));
    rope = *bound;
    const float* const in = bind.f32(node.inputs(0));
    (node.outputs(0) == attention.inputs(0) ? values.q_in : values.k) = in;
  }
  return rope;
}

const RegisterDeviceOp kRegistered(Node::kAttention, "attention", &BindDeviceAttention);

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceOp>> BindDeviceAttention(const NodeGroup& group,
                                                              DeviceBindContext& bind) {
  const int member = group.count - 1;
  const Node& node = bind.graph().nodes(group.first + member);
  const absl::StatusOr<AttentionConfig> config =
      AttentionConfigOf(node, bind.options().cache_type, bind);
  RETURN_IF_ERROR(NodeError(node, config.status()));
  DeviceAttentionOp::Values values;
  values.q = bind.f32(node.inputs(0));
  values.q_in = values.q;
  values.k = bind.f32(node.inputs(1));
  values.v = bind.f32(node.inputs(2));
  values.out = bind.f32(node.outputs(0));
  values.q_width = bind.width(node.inputs(0));
  values.kv_width = bind.width(node.inputs(1));
  ASSIGN_OR_RETURN(const std::optional<DeviceRope> rope,
                   BindRopes(group.first, group.first + member, node, values, bind));
  if (config->q_heads == 0) return std::make_unique<NoDeviceHeads>();
  absl::StatusOr<KernelChoice> choice =
      bind.kernels().ChooseAttention(config->layout, config->q_heads, bind.options().deterministic);
  RETURN_IF_ERROR(NodeError(node, choice.status()));
  DeviceAttention attention;
  attention.layout = config->layout;
  attention.q_heads = config->q_heads;
  attention.scale = config->scale;
  attention.window = config->window;
  attention.deterministic = bind.options().deterministic;
  const std::vector<int32_t> kv_head_of_q(config->kv_head_of_q.begin(), config->kv_head_of_q.end());
  ASSIGN_OR_RETURN(const uint8_t* const table,
                   bind.Table(kv_head_of_q.data(), kv_head_of_q.size() * sizeof(int32_t)));
  attention.kv_head_of_q = reinterpret_cast<const int32_t*>(table);
  RETURN_IF_ERROR(bind.ReserveAttention(config->layout, config->q_heads));
  return std::make_unique<DeviceAttentionOp>(attention, *std::move(choice), member,
                                             node.attention().kv_layer(), rope, values, bind);
}

}  // namespace bitshard
