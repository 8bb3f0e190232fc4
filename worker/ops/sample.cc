// sample: a token for every output, from logits that are sharded over the ranks; all ranks get the
// same; and log-probabilities of the known tokens after scored ones. Last node.
#include "worker/ops/sample.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/base/status_macros.h"
#include "worker/ops/bind_context.h"
#include "worker/ops/op.h"
#include "worker/sample/sampler.h"

namespace bitshard {
namespace {

using internal::Node;
using internal::Value;

class Sample final : public Op {
 public:
  Sample(std::unique_ptr<Sampler> sampler, std::unique_ptr<RowSource> logits,
         ScoreLogits* score_logits, size_t max_outputs)
      : sampler_(std::move(sampler)),
        logits_(std::move(logits)),
        score_logits_(score_logits),
        score_tokens_(std::min(kScoreTokens, max_outputs)) {}

  absl::Status Run(StepState& step) override {
    // What is empty is empty on every rank.
    if (!step.sampled.empty()) {
      RETURN_IF_ERROR(sampler_->Sample(*logits_, step.sample_rows, *step.collective, step.samples));
    }
    // After the sampled ones, whose logits they overwrite.
    for (size_t at = 0; at < step.scored.size(); at += score_tokens_) {
      const auto tokens = step.scored.subspan(at, score_tokens_);
      RETURN_IF_ERROR(score_logits_->Compute(step, tokens));
      RETURN_IF_ERROR(sampler_->Sample(*logits_, step.score_rows.subspan(at, score_tokens_),
                                       *step.collective, step.scores.subspan(at, score_tokens_)));
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<Sampler> sampler_;
  const std::unique_ptr<RowSource> logits_;
  ScoreLogits* const score_logits_;
  const size_t score_tokens_;  // at once
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
  ASSIGN_OR_RETURN(Sampler::Options options, SamplerOptionsOf(node, bind));
  options.max_outputs = static_cast<int>(bind.options().max_outputs);
  options.world = static_cast<int>(bind.options().world);
  options.isa = bind.options().isa;
  options.pool = bind.options().pool;
  ASSIGN_OR_RETURN(options.edited,
                   bind.Scratch(Sampler::EditedRows(options.max_outputs), options.local_vocab));
  auto logits = std::make_unique<HostRows>(bind.f32(node.inputs(0)), options.local_vocab);
  return MakeSampleOp(options, std::move(logits), bind.score_logits());
}

const RegisterOp kRegistered(Node::kSample, "sample", &Bind);

}  // namespace

absl::StatusOr<Sampler::Options> SamplerOptionsOf(const Node& node, const GraphValues& bind) {
  RETURN_IF_ERROR(bind.ExpectValues(node, {Value::F32}, {}));
  const Node* head = nullptr;
  for (const Node& other : bind.graph().nodes()) {
    if (other.has_lm_head() && other.outputs(0) == node.inputs(0)) head = &other;
  }
  if (head == nullptr)
    return absl::InvalidArgumentError("its input is not the output of an LmHead");
  Sampler::Options options;
  options.vocab_size = static_cast<uint32_t>(bind.graph().vocab_size());
  options.local_vocab = static_cast<uint32_t>(bind.width(node.inputs(0)));
  // A rank without vocabulary may have any begin.
  options.vocab_begin =
      options.local_vocab == 0 ? 0 : static_cast<uint32_t>(head->lm_head().vocab_begin());
  return options;
}

absl::StatusOr<std::unique_ptr<Op>> MakeSampleOp(const Sampler::Options& options,
                                                 std::unique_ptr<RowSource> logits,
                                                 ScoreLogits* score_logits) {
  ASSIGN_OR_RETURN(std::unique_ptr<Sampler> sampler, Sampler::Bind(options));
  return std::make_unique<Sample>(std::move(sampler), std::move(logits), score_logits,
                                  static_cast<size_t>(options.max_outputs));
}

}  // namespace bitshard
