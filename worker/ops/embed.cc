// embed: raw f32 bits of the tokens' embedding rows that this rank holds, zeros for the others;
// AllReduce puts the vocabulary together (a sum with zeros is exact).
#include <algorithm>
#include <memory>

#include "kernels/base/status_macros.h"
#include "kernels/registry/reduction.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class Embed final : public Op {
 public:
  Embed(const PackedMatrix* weight, int64_t vocab_begin, int64_t width, int64_t* out)
      : weight_(weight), vocab_begin_(vocab_begin), width_(width), out_(out) {}

  absl::Status Run(StepState& step) override {
    GatherRawBits(*weight_, vocab_begin_, step.tokens, out_, width_, *step.pool);
    return absl::OkStatus();
  }

 private:
  const PackedMatrix* const weight_;
  const int64_t vocab_begin_, width_;
  int64_t* const out_;
};

// No vocabulary rows at all on this rank.
class EmbedNothing final : public Op {
 public:
  EmbedNothing(int64_t width, int64_t* out) : width_(width), out_(out) {}

  absl::Status Run(StepState& step) override {
    std::fill_n(out_, step.count() * width_, 0);
    return absl::OkStatus();
  }

 private:
  const int64_t width_;
  int64_t* const out_;
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
  RETURN_IF_ERROR(bind.ExpectValues(node, {}, {Value::RAW_BITS}));
  const internal::Embed& spec = node.embed();
  const uint32_t out = node.outputs(0);
  ASSIGN_OR_RETURN(const PackedMatrix* weight, bind.Matrix(spec.weight()));
  if (weight == nullptr) return std::make_unique<EmbedNothing>(bind.width(out), bind.i64(out));
  const uint64_t vocab = bind.graph().vocab_size();
  if (weight->cols() != bind.width(out) || spec.vocab_begin() > vocab ||
      static_cast<uint64_t>(weight->rows()) > vocab - spec.vocab_begin()) {
    return absl::InvalidArgumentError("its vocabulary rows or its width do not fit the model");
  }
  return std::make_unique<Embed>(weight, static_cast<int64_t>(spec.vocab_begin()), bind.width(out),
                                 bind.i64(out));
}

const RegisterOp kRegistered(Node::kEmbed, "embed", &Bind);

}  // namespace
}  // namespace bitshard
