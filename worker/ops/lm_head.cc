// lm_head: logits of this rank's vocabulary rows, only for the tokens after which one is sampled,
// and for scored ones when Sample asks (a few at a time: nobody keeps those). Tokens that are only
// embedded have none: the runner reads the input.
#include "worker/ops/lm_head.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/status_macros.h"
#include "kernels/registry/linear.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/op.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class LmHead final : public Op, public ScoreLogits {
 public:
  struct Buffers {
    const float* x = nullptr;  // [tokens, hidden]
    int64_t hidden = 0;
    float* gathered = nullptr;  // [outputs, hidden]
    float* logits = nullptr;    // [outputs, rows]
  };

  LmHead(std::unique_ptr<BoundLinear> linear, SharedInput* shared, int64_t rows, Isa isa,
         const Buffers& buffers, BindContext::LogitsTap tap)
      : linear_(std::move(linear)),
        shared_(shared),
        rows_(rows),
        isa_(isa),
        buffers_(buffers),
        tap_(std::move(tap)) {}

  absl::Status Run(StepState& step) override {
    const int64_t outputs = static_cast<int64_t>(step.sampled.size());
    for (int64_t i = 0; i < outputs; ++i) Gather(step.sampled[static_cast<size_t>(i)], i);
    Multiply(outputs, buffers_.logits, *step.pool);
    if (!tap_) return absl::OkStatus();
    for (int64_t i = 0; i < outputs; ++i) {
      const size_t token = static_cast<size_t>(step.sampled[static_cast<size_t>(i)]);
      tap_(step.sample_slots[static_cast<size_t>(i)], static_cast<uint32_t>(step.positions[token]),
           LogitsRow(buffers_.logits, i));
    }
    return absl::OkStatus();
  }

  // Sample is the last node and writes no value: x and the logits are still where they were.
  absl::Status Compute(StepState& step, absl::Span<const ScoredToken> tokens) override {
    const int64_t count = static_cast<int64_t>(tokens.size());
    for (int64_t i = 0; i < count; ++i) Gather(tokens[static_cast<size_t>(i)].row, i);
    Multiply(count, buffers_.logits, *step.pool);
    if (tap_) {
      for (int64_t i = 0; i < count; ++i) {
        const ScoredToken& token = tokens[static_cast<size_t>(i)];
        tap_(token.slot, token.position, LogitsRow(buffers_.logits, i));
      }
    }
    return absl::OkStatus();
  }

  void Prefetch() const override {
    if (linear_ != nullptr) linear_->Prefetch();
  }

  std::vector<KernelChoice> Choices() const override {
    if (linear_ == nullptr) return {};
    return {linear_->choice()};
  }

 private:
  void Gather(int64_t from, int64_t to) {
    std::copy_n(buffers_.x + from * buffers_.hidden, buffers_.hidden,
                buffers_.gathered + to * buffers_.hidden);
  }

  void Multiply(int64_t tokens, float* logits, ThreadPool& pool) {
    if (tokens == 0 || linear_ == nullptr) return;
    shared_->prepared->Prepare(buffers_.gathered, tokens, buffers_.hidden, buffers_.hidden,
                               /*segment_cols=*/0, linear_->forms(), isa_, pool);
    linear_->Run(*shared_->prepared, logits, rows_, pool);
  }

  absl::Span<const float> LogitsRow(const float* logits, int64_t i) const {
    return absl::MakeConstSpan(logits + i * rows_, static_cast<size_t>(rows_));
  }

  const std::unique_ptr<BoundLinear> linear_;  // null: no vocabulary rows here
  SharedInput* const shared_;
  const int64_t rows_;
  const Isa isa_;
  const Buffers buffers_;
  const BindContext::LogitsTap tap_;
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
  ASSIGN_OR_RETURN(const LmHeadShape shape, CheckLmHead(node, bind));
  const int64_t rows = shape.rows, hidden = shape.hidden;
  const internal::LmHead& spec = node.lm_head();
  const uint32_t x = node.inputs(0), logits = node.outputs(0);
  const BindContext::Options& options = bind.options();
  const int64_t outputs = options.max_outputs;
  ASSIGN_OR_RETURN(const PackedMatrix* weight, bind.Matrix(spec.weight()));
  std::unique_ptr<BoundLinear> linear;
  SharedInput* shared = nullptr;
  if (weight != nullptr) {
    ASSIGN_OR_RETURN(BoundLinear bound,
                     BoundLinear::Bind(*weight, options.activations, /*segment_cols=*/0,
                                       /*segments_total=*/1, options.isa, options.kernel_order));
    linear = std::make_unique<BoundLinear>(std::move(bound));
    bool leader = false;  // always prepares: its input is gathered
    ASSIGN_OR_RETURN(shared, bind.ShareInput(logits, outputs, hidden, /*segment_cols=*/0, &leader));
  }
  LmHead::Buffers buffers;
  buffers.x = bind.f32(x);
  buffers.hidden = hidden;
  buffers.logits = bind.f32(logits);
  ASSIGN_OR_RETURN(buffers.gathered, bind.Scratch(outputs, hidden));
  auto op = std::make_unique<LmHead>(std::move(linear), shared, rows, options.isa, buffers,
                                     options.logits_tap);
  bind.set_score_logits(op.get());
  bind.set_final_hidden(buffers.x);
  return op;
}

const RegisterOp kRegistered(Node::kLmHead, "lm_head", &Bind);

}  // namespace

absl::StatusOr<LmHeadShape> CheckLmHead(const Node& node, const GraphValues& bind) {
  RETURN_IF_ERROR(bind.ExpectValues(node, {Value::F32}, {Value::F32}));
  const internal::LmHead& spec = node.lm_head();
  const uint32_t x = node.inputs(0), logits = node.outputs(0);
  LmHeadShape shape;
  RETURN_IF_ERROR(bind.MatrixShape(spec.weight(), &shape.rows, &shape.hidden));
  const uint64_t vocab = bind.graph().vocab_size();
  if (shape.hidden == 0 || bind.width(x) != shape.hidden || bind.width(logits) != shape.rows ||
      spec.vocab_begin() > vocab ||
      static_cast<uint64_t>(shape.rows) > vocab - spec.vocab_begin()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a matrix of ", shape.rows, " x ", shape.hidden, " from vocabulary row ",
        spec.vocab_begin(), " does not fit the model (", vocab, " x ", bind.width(x), ")"));
  }
  return shape;
}

}  // namespace bitshard
