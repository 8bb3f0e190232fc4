// lm_head: the wanted rows gathered, prepared, multiplied.
#include "worker/ops/lm_head.h"

#include <memory>
#include <utility>

#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"
#include "kernels/tensor/packed_matrix.h"
#include "worker/device/device_head.h"

namespace bitshard {
namespace {

using internal::Node;

class LmHeadOnDevice final : public DeviceHead {
 public:
  struct Parts {
    const DeviceMatrix* weight = nullptr;  // null: no vocabulary rows here
    KernelChoice choice;
    LmHeadShape shape;
    const float* x = nullptr;   // [tokens, hidden]
    float* gathered = nullptr;  // [outputs, hidden]
    DeviceActivations form;     // of these
    float* logits = nullptr;    // [outputs, rows]
    bool deterministic = true;
  };

  explicit LmHeadOnDevice(Parts parts) : parts_(std::move(parts)) {}

  absl::Status Enqueue(const int32_t* rows, int64_t count, const DeviceStep& step) override {
    if (count == 0 || parts_.weight == nullptr) return absl::OkStatus();
    const DeviceKernels& kernels = *step.kernels;
    const int64_t hidden = parts_.shape.hidden;
    RETURN_IF_ERROR(
        kernels.GatherRows(parts_.x, rows, count, hidden, parts_.gathered, *step.stream));
    RETURN_IF_ERROR(kernels.Prepare(parts_.gathered, hidden, count, parts_.form, *step.stream));
    DeviceLinear linear;
    linear.w = parts_.weight;
    linear.y = parts_.logits;
    linear.stride = parts_.shape.rows;
    linear.deterministic = parts_.deterministic;
    return kernels.Linear(absl::MakeConstSpan(&linear, 1), parts_.form, count, *step.stream);
  }

  const float* logits() const override { return parts_.logits; }
  int64_t vocab() const override { return parts_.shape.rows; }
  const float* input() const override { return parts_.x; }
  int64_t hidden() const override { return parts_.shape.hidden; }
  std::vector<KernelChoice> Choices() const override {
    if (parts_.weight == nullptr) return {};
    return {parts_.choice};
  }

 private:
  const Parts parts_;
};

absl::StatusOr<std::unique_ptr<DeviceHead>> Bind(const Node& node, DeviceBindContext& bind) {
  LmHeadOnDevice::Parts parts;
  ASSIGN_OR_RETURN(parts.shape, CheckLmHead(node, bind));
  ASSIGN_OR_RETURN(parts.weight, bind.Matrix(node.lm_head().weight()));
  parts.x = bind.f32(node.inputs(0));
  parts.deterministic = bind.options().deterministic;
  if (parts.weight == nullptr) return std::make_unique<LmHeadOnDevice>(std::move(parts));
  const PackedSpec& spec = parts.weight->spec;
  const ActivationMode mode = bind.options().activations;
  ASSIGN_OR_RETURN(parts.choice, bind.kernels().ChooseLinear(spec, /*segment_cols=*/0, mode,
                                                             parts.deterministic));
  const unsigned form_parts = bind.kernels().ReadsA8(spec, /*segment_cols=*/0, mode)
                                  ? PreparedPlan::kA8
                                  : PreparedPlan::kHalf;
  const uint64_t outputs = static_cast<uint64_t>(bind.options().max_outputs);
  const uint64_t hidden = static_cast<uint64_t>(parts.shape.hidden);
  ASSIGN_OR_RETURN(uint8_t* const gathered,
                   bind.Scratch(CheckedProduct({outputs, hidden, sizeof(float)})));
  parts.gathered = reinterpret_cast<float*>(gathered);
  parts.form.cols = parts.shape.hidden;
  parts.form.padded_cols = static_cast<int64_t>(RoundUp(hidden, kTileCols));
  ASSIGN_OR_RETURN(uint8_t* const form,
                   bind.Scratch(PreparedPlan::FormBytes(parts.form, outputs, form_parts)));
  PreparedPlan::SetPointers(form, outputs, parts.form, form_parts);
  if (spec.type == PackedSpec::Type::kF32) parts.form.x = parts.gathered;
  parts.logits = bind.f32(node.outputs(0));
  return std::make_unique<LmHeadOnDevice>(std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceHead>> BindDeviceHead(int node, DeviceBindContext& bind) {
  const Node& head = bind.graph().nodes(node);
  absl::StatusOr<std::unique_ptr<DeviceHead>> bound = Bind(head, bind);
  RETURN_IF_ERROR(NodeError(head, bound.status()));
  return bound;
}

}  // namespace bitshard
