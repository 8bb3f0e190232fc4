// sample: a token for every output, from logits that are sharded over the ranks; all ranks get the
// same. Last node.
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
  Sample(std::unique_ptr<Sampler> sampler, const float* logits, size_t local_vocab)
      : sampler_(std::move(sampler)), logits_(logits), local_vocab_(local_vocab) {}

  absl::Status Run(StepState& step) override {
    if (step.sampled.empty()) return absl::OkStatus();  // so it is on every rank
    return sampler_->Sample(absl::MakeConstSpan(logits_, step.sampled.size() * local_vocab_),
                            step.sample_rows, *step.collective, step.samples);
  }

 private:
  const std::unique_ptr<Sampler> sampler_;
  const float* const logits_;  // [outputs, local_vocab_]
  const size_t local_vocab_;
};

absl::StatusOr<std::unique_ptr<Op>> Bind(const Node& node, BindContext& bind) {
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
  options.max_outputs = static_cast<int>(bind.options().max_outputs);
  options.world = static_cast<int>(bind.options().world);
  options.isa = bind.options().isa;
  options.pool = bind.options().pool;
  ASSIGN_OR_RETURN(std::unique_ptr<Sampler> sampler, Sampler::Bind(options));
  return std::make_unique<Sample>(std::move(sampler), bind.f32(node.inputs(0)),
                                  options.local_vocab);
}

const RegisterOp kRegistered(Node::kSample, "sample", &Bind);

}  // namespace
}  // namespace bitshard
