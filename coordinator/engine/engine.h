// The loop that ties it together: queue -> schedule -> executor -> commit -> text -> frontend.
//
// One engine thread owns all scheduling state. Other threads talk to it through Submit and Cancel,
// which only append to an inbox. Sinks are called on the engine thread and must not block: they
// copy into their stream's own queue. Every accepted request ends with exactly one OnEnd; when it
// is called the request's blocks are back, its id is free again and Stats() counts it as finished.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "coordinator/engine/engine_stats.h"
#include "coordinator/engine/step_executor.h"
#include "coordinator/grammar/token_matcher.h"
#include "coordinator/text/tokenizer.h"

namespace bitshard {

class EngineMetrics;  // engine_metrics.h

enum class FinishReason { kStop, kLength };

inline constexpr size_t kMaxBiases = 1024;  // of a request

struct TokenLogprobs {
  float chosen = 0;  // natural log
  std::vector<std::pair<int32_t, float>> top;
};

// Generated, with `score_from` after log-probabilities of its own tokens, or those alone.
struct GenerateRequest {
  std::string request_id;  // unique among live requests of `caller`
  // Identity that scopes request_id and Abort, and the tenant among whom service is shared; "" on
  // an open port.
  std::string caller;
  std::vector<int32_t> prompt_tokens;  // validated: in vocabulary, not empty
  // prompt + max_tokens <= context (validated at admission); 0 only with score_from.
  uint32_t max_tokens = 0;
  float temperature = 0;
  uint32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  uint64_t seed = 0;  // effective
  // Edits of the logits, in this order; counts are over the output, repetition's over prompt and
  // output.
  float repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::vector<std::pair<uint32_t, float>> logit_bias;  // by token, ascending, at most kMaxBiases
  std::string allowed_tokens;  // a token mask (proto/token_mask.h) of the vocabulary; empty = all
  uint32_t min_tokens = 0;     // no end in fewer output tokens; <= max_tokens
  // What the output must look like; null = anything. Ends kStop when nothing may follow. Shared
  // with other requests that ask for the same.
  std::shared_ptr<const CompiledGrammar> grammar;
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;  // on top of the model's end tokens
  bool include_stop = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  std::vector<int32_t> visible_tokens = {};  // control tokens that are in the text all the same
  int32_t priority = 0;                      // lower first
  bool batch = false;                        // runs when nothing else wants to
  std::string cache_salt;  // only requests with the same one share what the prefix cache holds
  // prompt_tokens from this index on are scored (0 as 1: the first has nothing before it), with
  // top_logprobs alternatives each. The scores come with the first delta; with max_tokens 0
  // nothing is generated, and they come with the end.
  std::optional<uint32_t> score_from;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time received = absl::InfinitePast();
};

// A piece of output: one or more tokens and the text that became certain with them (may be empty).
struct TokenDelta {
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;  // one a token when asked for
  uint32_t first_index = 0;             // output index of tokens[0]
  // In the first delta, with score_from: one a prompt token from max(1, score_from) on.
  std::vector<TokenLogprobs> prompt_logprobs;
  std::string text;  // valid UTF-8
};

struct RequestTimings {
  absl::Duration queue, prefill, decode;
};

struct RequestEnd {
  absl::Status status;  // OK: finish_reason is set (kLength when tokens were scored)
  std::optional<FinishReason> finish_reason;
  std::string matched_stop;              // stop string, when one matched
  std::optional<int32_t> matched_token;  // end or stop token, when one matched
  std::string tail_text;                 // text held back until the end; empty unless status is OK
  uint32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  RequestTimings timings;
  // With score_from, max_tokens 0 and an OK status: one a prompt token from max(1, score_from) on.
  std::vector<TokenLogprobs> scores;
};

class RequestSink {
 public:
  virtual ~RequestSink() = default;
  // The request has left the queue and cannot be shed any more; called at most once, before any
  // delta.
  virtual void OnAdmitted() {}
  virtual void OnDelta(TokenDelta delta) = 0;
  virtual void OnEnd(RequestEnd end) = 0;  // last call
};

// One accepted request; never used again, unlike a request_id, which is free once its request has
// ended.
using RequestHandle = uint64_t;

class Engine {
 public:
  struct Options {
    uint32_t token_budget = 256;  // per step
    uint32_t prefill_chunk = 0;   // tokens of one sequence a step at most; 0 = the budget
    uint32_t max_running = 64;
    // Bounds of the queue; batch requests have a queue of their own with the same bounds.
    uint32_t max_waiting = 1024;  // requests
    uint64_t max_waiting_tokens = 1 << 20;
    // A request whose predicted wait is longer is refused at once; so is one whose deadline comes
    // before.
    absl::Duration max_queue_wait = absl::InfiniteDuration();
    // Steps that hold decodes take on prefill only as long as they mostly end within this; zero =
    // no bound.
    absl::Duration itl_slo = absl::ZeroDuration();
    absl::flat_hash_map<std::string, double> tenant_weights = {};  // positive; others have 1
    uint32_t context_tokens = 0;     // of the model; 0 = only the KV pool bounds a request
    uint32_t vocab_size = 0;         // of the model; 0 = token ids of prompts are not checked
    bool fail_on_group_loss = true;  // until recovery in place exists
    uint32_t async_depth = 2;        // plans that may be unacked, 1 or 2
    bool prefix_cache = true;
    std::string model_fingerprint = {};  // of weights and numerics: goes into what the prefix cache
                                         // tells prefixes apart by
    // With nothing to do, an empty plan each interval shows that steps make progress on every rank;
    // infinite = none.
    absl::Duration idle_plan_interval = absl::Seconds(1);
  };

  // tokenizer, executor and metrics outlive the engine.
  static std::unique_ptr<Engine> Create(const Options& options, const Tokenizer* tokenizer,
                                        StepExecutor* executor, EngineMetrics* metrics);
  virtual ~Engine() = default;  // Stop()s

  virtual void Start() = 0;
  // Admission happens here, in microseconds, on the caller's thread: INVALID_ARGUMENT (prompt +
  // max_tokens > context), ALREADY_EXISTS (live id), RESOURCE_EXHAUSTED (queue full or too slow),
  // FAILED_PRECONDITION (can never fit the KV pool), UNAVAILABLE (group lost or draining),
  // DEADLINE_EXCEEDED (already expired). On error the sink is never called.
  virtual absl::StatusOr<RequestHandle> Submit(GenerateRequest request,
                                               std::shared_ptr<RequestSink> sink) = 0;
  // The request ends CANCELLED (or DEADLINE_EXCEEDED when its deadline has passed) unless it has
  // ended already.
  virtual void Cancel(RequestHandle request) = 0;
  // Cancels the request that has the name now, if any.
  virtual void Abort(const std::string& caller, const std::string& request_id) = 0;
  virtual EngineStats Stats() const = 0;
  // No new admissions; returns when all have ended or `timeout` passed (the rest end UNAVAILABLE).
  // Called on several threads, the first timeout to pass counts for all.
  virtual void Drain(absl::Duration timeout) = 0;
  virtual void Stop() = 0;
};

}  // namespace bitshard
