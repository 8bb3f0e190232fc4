// What the engine and the faces of the frontend tell about themselves, one method an event.
// coordinator/metrics.cc turns them into Prometheus series; here is no Prometheus.
//
// Implementations are thread-safe and return at once: the engine thread calls them in every step.
// How many requests were rejected and ended is not told here but kept in EngineStats, so that one
// snapshot has numbers that agree.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "coordinator/engine/engine_stats.h"
#include "coordinator/engine/outcome.h"

namespace bitshard {

// What a step had in it; the label kind. kIdle: an empty step that only shows that every rank is
// alive.
enum class StepKind { kPrefill, kDecode, kMixed, kIdle };
inline constexpr StepKind kAllStepKinds[] = {StepKind::kPrefill, StepKind::kDecode,
                                             StepKind::kMixed, StepKind::kIdle};

// The door by which a request came; the label api.
enum class Face { kOwn, kKserve, kVllm };
inline constexpr Face kAllFaces[] = {Face::kOwn, Face::kKserve, Face::kVllm};

enum class SchedulerOp { kPlan, kCommit };
inline constexpr SchedulerOp kAllSchedulerOps[] = {SchedulerOp::kPlan, SchedulerOp::kCommit};

// kRequest: all that is done to a request's prompt (checks, chat template, tokens); the others are
// the methods of these names.
enum class TokenizerOp { kRequest, kTokenize, kDetokenize, kTemplate };
inline constexpr TokenizerOp kAllTokenizerOps[] = {TokenizerOp::kRequest, TokenizerOp::kTokenize,
                                                   TokenizerOp::kDetokenize,
                                                   TokenizerOp::kTemplate};

// Why a group was lost, by the code of the fleet's status; the label cause.
enum class LossCause { kWorkerLost, kTimeout, kFailed };
inline constexpr LossCause kAllLossCauses[] = {LossCause::kWorkerLost, LossCause::kTimeout,
                                               LossCause::kFailed};

enum class GrammarKind { kJsonSchema, kRegex, kChoice, kEbnf };
inline constexpr GrammarKind kAllGrammarKinds[] = {GrammarKind::kJsonSchema, GrammarKind::kRegex,
                                                   GrammarKind::kChoice, GrammarKind::kEbnf};

// Label values: "decode", "own", "plan", "request", "json_schema" ...
absl::string_view Name(StepKind kind);
absl::string_view Name(Face face);
absl::string_view Name(SchedulerOp op);
absl::string_view Name(TokenizerOp op);
absl::string_view Name(GrammarKind kind);
absl::string_view Name(LossCause cause);
absl::string_view Name(EngineStats::GroupState state);

// A request at its end. It is always in exactly one phase, timed by one clock: the phases add up to
// `e2e`.
struct RequestSummary {
  EndReason reason = EndReason::kError;
  absl::StatusCode code = absl::StatusCode::kOk;
  uint32_t prompt_tokens = 0, cached_tokens = 0, max_tokens = 0;
  uint32_t choices = 1;
  // Of all choices together; the most tokens of one of them.
  uint32_t completion_tokens = 0, preemptions = 0, longest_choice = 0;
  absl::Duration e2e;        // received -> end
  absl::Duration frontend;   // received -> the engine has it: parsing, tokenizing
  absl::Duration queue;      // -> in a step's plan for the first time
  absl::Duration prefill;    // -> first token committed
  absl::Duration decode;     // -> end
  absl::Duration recompute;  // preempted, or its group lost -> its next token; in no other phase
  absl::Duration paused;     // for a slow reader; in no other phase
  absl::Duration after_first_token;  // first token -> end; zero without a token
};

struct StepSummary {
  StepKind kind = StepKind::kIdle;
  uint32_t tokens = 0;  // positions computed
  uint32_t rows = 0;
  absl::Duration execution;   // on rank 0, waiting for the other ranks included
  absl::Duration round_trip;  // plan handed to the executor -> result at the engine
};

// Every method does nothing by itself.
class EngineMetrics {
 public:
  virtual ~EngineMetrics() = default;

  // The engine's.
  virtual void InterToken(absl::Duration /*gap*/) {}  // between two committed tokens of a request
  // With the first token: the prompt, and how many of its tokens came out of the prefix cache.
  virtual void PromptTokens(uint32_t /*tokens*/, uint32_t /*cached_tokens*/) {}
  virtual void GeneratedTokens(uint32_t /*tokens*/) {}
  virtual void Preempted(uint32_t /*requests*/) {}
  virtual void NonFinite() {}  // a request ended because its logits were no numbers
  // For each accepted request exactly once.
  virtual void Ended(const RequestSummary& /*summary*/) {}
  virtual void StepEnded(const StepSummary& /*summary*/) {}
  virtual void SchedulerTime(SchedulerOp /*op*/, absl::Duration /*time*/) {}  // of one step
  virtual void GroupLost(LossCause /*cause*/) {}
  // Ready again after a loss; `resumed` requests had tokens and go on.
  virtual void GroupRebuilt(LossCause /*cause*/, uint32_t /*resumed*/) {}

  // The frontend's. For each request that asks for tokens or scores, and each input of an Embed
  // call: Received once; then Refused by the frontend, or a verdict of the engine's admission.
  virtual void Received(Face /*face*/) {}
  virtual void Refused(RejectReason /*reason*/) {}
  // The refusal, the engine's too, is handed to the transport.
  virtual void RefusalSent(absl::Duration /*since_received*/) {}
  // For each accepted request one of the two. Handed to the transport: written to the stream, or,
  // where the answer comes in one piece, put into it.
  virtual void FirstToken(absl::Duration /*since_received*/) {}
  virtual void EndedWithoutToken() {}
  virtual void TokenizerTime(TokenizerOp /*op*/, absl::Duration /*time*/) {}
  virtual void GrammarCompiled(GrammarKind /*kind*/, absl::Duration /*time*/, bool /*ok*/) {}
  virtual void GrammarCacheHit() {}
  // Pieces of output that wait for their reader: how many more or fewer there are.
  virtual void StreamBacklog(int64_t /*change*/) {}
  virtual void Coalesced() {}  // a piece of output was merged into one that waits
  virtual void SlowReaderEnded() {}
  // Every gRPC call; `method`: "/bitshard.v1.Inference/Generate".
  virtual void CallStarted(absl::string_view /*method*/) {}
  virtual void CallEnded(absl::string_view /*method*/, absl::StatusCode /*code*/,
                         absl::Duration /*time*/) {}
};

class NullEngineMetrics : public EngineMetrics {};

}  // namespace bitshard
