// attention: appends the step's k and v to the paged cache, then attends causally over the cache as
// stored.
#include "worker/ops/attention.h"

#include <memory>
#include <utility>
#include <vector>

#include "kernels/base/status_macros.h"
#include "worker/device/device_op.h"

namespace bitshard {
namespace {

using internal::Node;

class DeviceAttentionOp final : public DeviceOp {
 public:
  struct Values {
    const float* q = nullptr;
    const float* k = nullptr;
    const float* v = nullptr;
    float* out = nullptr;
    int64_t q_width = 0, kv_width = 0;
  };

  DeviceAttentionOp(const DeviceAttention& attention, KernelChoice choice, uint32_t layer,
                    const Values& values, const DeviceBindContext& bind)
      : attention_(attention),
        choice_(std::move(choice)),
        layer_(layer),
        values_(values),
        bind_(bind) {}

  absl::Status Enqueue(const DeviceStep& step) override {
    DeviceAttention attention = attention_;
    attention.cache = step.cache_layers[layer_];
    attention.scratch = bind_.attention_scratch();
    attention.scratch_bytes = bind_.attention_scratch_bytes();
    attention.max_context = step.max_context;
    RETURN_IF_ERROR(step.kernels->Append(attention, values_.k, values_.v, values_.kv_width,
                                         step.arrays, step.tokens, *step.stream));
    return step.kernels->Attend(attention, values_.q, values_.q_width, values_.out, values_.q_width,
                                step.arrays, step.tokens, *step.stream);
  }

  std::vector<KernelChoice> ChoicesOf(int) const override { return {choice_}; }

 private:
  const DeviceAttention attention_;
  const KernelChoice choice_;
  const uint32_t layer_;  // of the cache
  const Values values_;
  const DeviceBindContext& bind_;
};

// A rank without heads of this layer.
class NoDeviceHeads final : public DeviceOp {
 public:
  absl::Status Enqueue(const DeviceStep&) override { return absl::OkStatus(); }
};

absl::StatusOr<std::unique_ptr<DeviceOp>> Bind(const NodeGroup& group, DeviceBindContext& bind) {
  const Node& node = bind.graph().nodes(group.first);
  ASSIGN_OR_RETURN(const AttentionConfig config,
                   AttentionConfigOf(node, bind.options().cache_type, bind));
  if (config.q_heads == 0) return std::make_unique<NoDeviceHeads>();
  ASSIGN_OR_RETURN(
      KernelChoice choice,
      bind.kernels().ChooseAttention(config.layout, config.q_heads, bind.options().deterministic));
  DeviceAttention attention;
  attention.layout = config.layout;
  attention.q_heads = config.q_heads;
  attention.scale = config.scale;
  attention.window = config.window;
  attention.deterministic = bind.options().deterministic;
  const std::vector<int32_t> kv_head_of_q(config.kv_head_of_q.begin(), config.kv_head_of_q.end());
  ASSIGN_OR_RETURN(const uint8_t* const table,
                   bind.Table(kv_head_of_q.data(), kv_head_of_q.size() * sizeof(int32_t)));
  attention.kv_head_of_q = reinterpret_cast<const int32_t*>(table);
  RETURN_IF_ERROR(bind.ReserveAttention(config.layout, config.q_heads));
  DeviceAttentionOp::Values values;
  values.q = bind.f32(node.inputs(0));
  values.k = bind.f32(node.inputs(1));
  values.v = bind.f32(node.inputs(2));
  values.out = bind.f32(node.outputs(0));
  values.q_width = bind.width(node.inputs(0));
  values.kv_width = bind.width(node.inputs(1));
  return std::make_unique<DeviceAttentionOp>(attention, std::move(choice),
                                             node.attention().kv_layer(), values, bind);
}

const RegisterDeviceOp kRegistered(Node::kAttention, "attention", &Bind);

}  // namespace
}  // namespace bitshard
