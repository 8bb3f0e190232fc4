// What one node of the graph does in a step. Ops are made once, at bind, and then run in graph
// order on the step thread.
//
// One file an op; it registers its node kind before main, so that adding one changes no list. Bind
// checks everything that can be checked and asks for buffers and kernels; Run allocates nothing and
// looks nothing up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "kernels/base/thread_pool.h"
#include "kernels/registry/attention.h"
#include "kernels/registry/kernel_choice.h"
#include "proto/graph.pb.h"
#include "proto/plan.pb.h"
#include "worker/collective/collective.h"
#include "worker/sample/sampler.h"

namespace bitshard {

class BindContext;  // worker/ops/bind_context.h

// A token after which a known one is scored (ROW_SCORE).
struct ScoredToken {
  uint32_t slot = 0;
  uint32_t position = 0;
  int64_t row = 0;  // among the step's tokens
};

// Most scored tokens that go through the vocabulary's matrix together.
inline constexpr size_t kScoreTokens = 16;

// The step at hand, in the form that ops want. Views are into the runner's own arrays and valid for
// one step.
struct StepState {
  absl::Span<const int32_t> tokens;     // ids, all rows one after the other
  absl::Span<const int32_t> positions;  // of each token in its sequence
  absl::Span<const AttentionRow> rows;
  // Tokens after which one is sampled: their place among `tokens`, their slots, how, and what came
  // out (by Sample).
  absl::Span<const int32_t> sampled;
  absl::Span<const uint32_t> sample_slots;
  absl::Span<const SampleRow> sample_rows;
  absl::Span<SampleOutput> samples;
  // The same for tokens that are only scored. They are many: their logits are made a few at a time.
  absl::Span<const ScoredToken> scored;
  absl::Span<const SampleRow>
      score_rows;                   // as scored; without a target only the logits tap listens
  absl::Span<SampleOutput> scores;  // as scored
  absl::Span<uint8_t> poisoned;     // a token: some sum of it was not finite; AllReduce sets it
  bool reads_hidden = false;  // somebody wants the hidden states after the last norm (ROW_POOL)
  uint8_t* const* cache_layers = nullptr;  // by cache layer
  Collective* collective = nullptr;
  ThreadPool* pool = nullptr;

  int64_t count() const { return static_cast<int64_t>(tokens.size()); }
};

class Op {
 public:
  virtual ~Op() = default;
  // UNAVAILABLE when a collective was aborted or a peer is gone; other errors do not happen in a
  // step.
  virtual absl::Status Run(StepState& step) = 0;
  // Called while the op before is about to run: asks for memory that Run touches first and that
  // nothing has touched since the last step.
  virtual void Prefetch() const {}
  // Which kernels it runs and why not faster ones; none when there is nothing to choose.
  virtual std::vector<KernelChoice> Choices() const { return {}; }
  // The same for each node of an op that computes several (fusion.h).
  virtual std::vector<KernelChoice> ChoicesOf(int member) const {
    return member == 0 ? Choices() : std::vector<KernelChoice>();
  }
};

// Logits of scored tokens: LmHead makes them when Sample asks.
class ScoreLogits {
 public:
  virtual ~ScoreLogits() = default;
  // Of `tokens`, a part of step.scored: at most kScoreTokens, and no more than the step's largest
  // number of outputs. They take the place of the sampled tokens' logits, from row 0 on. Errors as
  // Op::Run.
  virtual absl::Status Compute(StepState& step, absl::Span<const ScoredToken> tokens) = 0;
};

using BindOpFn = absl::StatusOr<std::unique_ptr<Op>> (*)(const internal::Node& node,
                                                         BindContext& bind);

// Before main: `const RegisterOp kRegistered(internal::Node::kEmbed, "embed", &Bind);`.
struct RegisterOp {
  RegisterOp(internal::Node::OpCase kind, const char* name, BindOpFn bind);
};

// UNIMPLEMENTED for a kind that nobody registered; lists those that are.
absl::StatusOr<std::unique_ptr<Op>> BindOp(const internal::Node& node, BindContext& bind);

// Names of all registered kinds, sorted: what a worker tells when it registers.
std::vector<std::string> RegisteredOps();

}  // namespace bitshard
