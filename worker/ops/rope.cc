// rope: rotates q or k by the tokens' positions. Works in place; the buffer plan usually lays the
// output over the input.
#include "worker/ops/rope.h"

#include <algorithm>
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

class RopeOp final : public Op {
 public:
  RopeOp(const RopeTable* table, int heads, const float* in, int64_t width, float* out)
      : table_(table), heads_(heads), in_(in), width_(width), out_(out) {}

  absl::Status Run(StepState& step) override {
    if (width_ == 0) return absl::OkStatus();  // no heads here
    if (in_ != out_) std::copy_n(in_, step.count() * width_, out_);
    table_->Apply(out_, step.count(), heads_, width_, step.positions, *step.pool);
    return absl::OkStatus();
  }

 private:
  const RopeTable* const table_;
  const int heads_;
  const float* const in_;
  const int64_t width_;
  float* const out_;
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
  RETURN_IF_ERROR(CheckRope(node, bind));
  const uint32_t in = node.inputs(0), out = node.outputs(0);
  ASSIGN_OR_RETURN(const RopeConfig config, RopeConfigOf(node.rope(), bind));
  ASSIGN_OR_RETURN(const RopeTable* table, bind.Rope(config));
  return std::make_unique<RopeOp>(table, static_cast<int>(node.rope().heads()), bind.f32(in),
                                  bind.width(in), bind.f32(out));
}

const RegisterOp kRegistered(Node::kRope, "rope", &Bind);

}  // namespace

absl::Status CheckRope(const Node& node, const GraphValues& bind) {
  RETURN_IF_ERROR(bind.ExpectValues(node, {Value::F32}, {Value::F32}));
  const internal::Rope& spec = node.rope();
  const uint32_t in = node.inputs(0), out = node.outputs(0);
  const int64_t width = int64_t{spec.heads()} * spec.head_dim();
  if (bind.width(in) != width || bind.width(out) != width) {
    return absl::InvalidArgumentError(absl::StrCat(spec.heads(), " heads of ", spec.head_dim(),
                                                   " do not make a value of width ",
                                                   bind.width(in)));
  }
  return absl::OkStatus();
}

absl::StatusOr<RopeConfig> RopeConfigOf(const internal::Rope& spec, const GraphValues& bind) {
  if (spec.head_dim() == 0 || spec.head_dim() > 65536 || spec.rotary_dim() == 0 ||
      spec.rotary_dim() % 2 != 0 || spec.rotary_dim() > spec.head_dim() || spec.heads() > 65536) {
    return absl::InvalidArgumentError(absl::StrCat("heads of ", spec.head_dim(), " with ",
                                                   spec.rotary_dim(), " rotated elements"));
  }
  RopeConfig config;
  config.head_dim = static_cast<int>(spec.head_dim());
  config.rotary_dim = static_cast<int>(spec.rotary_dim());
  config.theta = spec.theta();
  config.max_positions = static_cast<int64_t>(bind.graph().context_length());
  switch (spec.pairing()) {
    case internal::Rope::HALVES:
      config.pairing = RopeConfig::Pairing::kHalves;
      break;
    case internal::Rope::INTERLEAVED:
      config.pairing = RopeConfig::Pairing::kInterleaved;
      break;
    default:
      return absl::InvalidArgumentError("unknown pairing");
  }
  switch (spec.scaling_case()) {
    case internal::Rope::kLlama3:
      config.scaling =
          RopeConfig::Llama3{spec.llama3().factor(), spec.llama3().low_freq_factor(),
                             spec.llama3().high_freq_factor(), spec.llama3().original_context()};
      break;
    case internal::Rope::kLinear:
      config.scaling = RopeConfig::Linear{spec.linear().factor()};
      break;
    case internal::Rope::kYarn:
      config.scaling = RopeConfig::Yarn{spec.yarn().factor(),    spec.yarn().original_context(),
                                        spec.yarn().beta_fast(), spec.yarn().beta_slow(),
                                        spec.yarn().truncate(),  spec.yarn().attention_factor()};
      break;
    case internal::Rope::kDivisorsWeight: {
      ASSIGN_OR_RETURN(const std::vector<float>* divisors,
                       bind.HostVector(spec.divisors_weight(), spec.rotary_dim() / 2));
      config.divisors = *divisors;
      break;
    }
    case internal::Rope::SCALING_NOT_SET:
      break;
  }
  return config;
}

}  // namespace bitshard
