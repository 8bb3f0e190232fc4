// embed: raw f32 bits of the tokens' embedding rows that this rank holds, zeros for the others.
#include <memory>

#include "kernels/base/status_macros.h"
#include "worker/device/device_op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class DeviceEmbed final : public DeviceOp {
 public:
  DeviceEmbed(const DeviceMatrix* weight, int64_t vocab_begin, int64_t width, int64_t* out)
      : weight_(weight), vocab_begin_(vocab_begin), width_(width), out_(out) {}

  absl::Status Enqueue(const DeviceStep& step) override {
    if (weight_ == nullptr) {  // no vocabulary rows at all on this rank
      const size_t bytes = static_cast<size_t>(step.tokens * width_) * sizeof(int64_t);
      return step.device->Fill(out_, 0, bytes, *step.stream);
    }
    return step.kernels->Gather(*weight_, vocab_begin_, step.arrays.token, step.tokens, out_,
                                *step.stream);
  }

 private:
  const DeviceMatrix* const weight_;
  const int64_t vocab_begin_, width_;
  int64_t* const out_;
};

absl::StatusOr<std::unique_ptr<DeviceOp>> Bind(const NodeGroup& group, DeviceBindContext& bind) {
  const Node& node = bind.graph().nodes(group.first);
  RETURN_IF_ERROR(bind.ExpectValues(node, {}, {Value::RAW_BITS}));
  const internal::Embed& spec = node.embed();
  const uint32_t out = node.outputs(0);
  ASSIGN_OR_RETURN(const DeviceMatrix* weight, bind.Matrix(spec.weight()));
  const uint64_t vocab = bind.graph().vocab_size();
  if (weight != nullptr && (weight->cols() != bind.width(out) || spec.vocab_begin() > vocab ||
                            static_cast<uint64_t>(weight->rows()) > vocab - spec.vocab_begin())) {
    return absl::InvalidArgumentError("its vocabulary rows or its width do not fit the model");
  }
  return std::make_unique<DeviceEmbed>(weight, static_cast<int64_t>(spec.vocab_begin()),
                                       bind.width(out), bind.i64(out));
}

const RegisterDeviceOp kRegistered(Node::kEmbed, "embed", &Bind);

}  // namespace
}  // namespace bitshard
