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

class EngineMetrics;   // engine_metrics.h
struct ResumedAnswer;  // resume.h

enum class FinishReason { kStop, kLength };

inline constexpr size_t kMaxBiases = 1024;    // of a request
inline constexpr uint32_t kMaxChoices = 128;  // of a request

struct TokenLogprobs {
  float chosen = 0;  // natural log
  std::vector<std::pair<int32_t, float>> top;
};

// Generated, with `score_from` after log-probabilities of its own tokens, or those alone; or a
// vector.
struct GenerateRequest {
  std::string request_id;  // unique among live requests of `caller`
  // Identity that scopes request_id and Abort, and the tenant among whom service is shared; "" on
  // an open port.
  std::string caller;
  std::vector<int32_t> prompt_tokens;  // validated: in vocabulary, not empty
  // prompt + max_tokens <= context (validated at admission); 0 only with score_from or pooling.
  uint32_t max_tokens = 0;
  // Answers to the prompt, each drawn with the ChoiceSeed (sampling.h) of its index; at most
  // kMaxChoices and Options::max_running. More than one only with max_tokens.
  uint32_t choices = 1;
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
  // The output goes on after these tokens, which the caller has already, as if they had been
  // generated here; all indices and bounds count from the first of them. In vocabulary, at most
  // max_tokens, none but the last ends the output: if that does, the request ends at once.
  std::vector<int32_t> resumed = {};
  // What ReplayResumed made of them for this request; null: the engine replays them, on its own
  // thread. Shared, because requests are copied; read only.
  std::shared_ptr<const ResumedAnswer> replayed = nullptr;
  uint32_t first_choice = 0;   // the place, among those first asked for, of the first choice
  bool supersede = false;      // ends a live request of the same name, once this one is accepted
  bool status_events = false;  // OnStatus is called
  // prompt_tokens from this index on are scored (0 as 1: the first has nothing before it), with
  // top_logprobs alternatives each. The scores come with the first delta; with max_tokens 0
  // nothing is generated, and they come with the end.
  std::optional<uint32_t> score_from;
  // prompt_tokens become a vector, which comes with the end. REQUIRES then: max_tokens 0, no
  // score_from.
  internal::Pooling pooling = internal::POOLING_NONE;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time received = absl::InfinitePast();

  // That have to be computed before something new comes of them.
  uint64_t given_tokens() const { return prompt_tokens.size() + resumed.size(); }
};

// A piece of output: one or more tokens and the text that became certain with them (may be empty).
struct TokenDelta {
  uint32_t choice = 0;  // from first_choice on
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;  // one a token when asked for
  uint32_t first_index = 0;             // output index of tokens[0]
  // In the first delta of choice 0, with score_from: one a prompt token from max(1, score_from) on.
  std::vector<TokenLogprobs> prompt_logprobs;
  std::string text;  // valid UTF-8
};

// Where a request stands that brings no tokens.
struct RequestStatus {
  enum class State {
    kQueued,     // for its first step
    kPrefill,    // given tokens, or ones that were lost, are computed
    kPreempted,  // waits again, for room
    kRecovering  // waits for a group
  };
  State state = State::kQueued;
  uint32_t ahead = 0;                                 // kQueued: requests that are served before it
  std::optional<absl::Duration> predicted_wait = {};  // kQueued, when something is known
  // kPrefill: of `total` tokens, those that are computed, or came out of the prefix cache.
  uint32_t computed = 0, total = 0;

  friend bool operator==(const RequestStatus&, const RequestStatus&) = default;
};

struct RequestTimings {
  absl::Duration queue, prefill, decode;
};

// How a request ended; or how one of its choices did, which then ended well.
struct RequestEnd {
  absl::Status status;  // OK: finish_reason is set (kLength when tokens were scored)
  uint32_t choice = 0;  // with an OK status: the rest, but for `all`, is about this one
  std::optional<FinishReason> finish_reason;
  std::string matched_stop;              // stop string, when one matched
  std::optional<int32_t> matched_token;  // end or stop token, when one matched
  std::string tail_text;                 // text held back until the end; empty unless status is OK
  uint32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
  uint32_t resumed_tokens = 0;  // of completion_tokens
  RequestTimings timings;
  // At the end of a request: all its choices.
  struct All {
    uint32_t completion_tokens = 0;
    RequestTimings timings;
  } all;
  // With score_from, max_tokens 0 and an OK status: one a prompt token from max(1, score_from) on.
  std::vector<TokenLogprobs> scores;
  // With pooling and an OK status: [hidden size], as pooled.
  std::vector<float> embedding;
};

class RequestSink {
 public:
  virtual ~RequestSink() = default;
  // The request has left the queue and cannot be shed any more; called at most once, before any
  // delta.
  virtual void OnAdmitted() {}
  // With status_events: whenever the state changes, with each piece of kPrefill, and when others
  // leave the queue, but not each time.
  virtual void OnStatus(const RequestStatus& /*status*/) {}
  virtual void OnDelta(TokenDelta delta) = 0;
  // One of several choices is complete, others go on. The one that is complete last comes with
  // OnEnd.
  virtual void OnChoiceEnd(RequestEnd /*end*/) {}
  virtual void OnEnd(RequestEnd end) = 0;  // last call
};

// One accepted request; never used again, unlike a request_id, which is free once its request has
// ended.
using RequestHandle = uint64_t;

class Engine {
 public:
  struct Options {
    uint32_t token_budget = UINT32_MAX;  // per step, at most the group's
    uint32_t prefill_chunk = 0;          // tokens of one sequence a step at most; 0 = the budget
    uint32_t max_running = 64;           // no more than the budget has tokens
    // Bounds of the queue; batch requests have a queue of their own with the same bounds.
    uint32_t max_waiting = 1024;  // requests
    uint64_t max_waiting_tokens = 1 << 20;
    // Nearly all accepted requests have their first step within this: one that would rather not, as
    // predictions have turned out lately, is refused at once. So is one whose deadline comes before
    // the predicted wait is over. Batch requests have no such bound.
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
  // Requests of one caller, id, priority and class: all are accepted, or none is and the first one
  // that cannot be says why. Their queue and wait are judged as those of one request; the id is
  // free again when all have ended, and Abort cancels one that has not. REQUIRES: not empty.
  struct Submission {
    GenerateRequest request;
    std::shared_ptr<RequestSink> sink;  // shared with the caller's call, as in Submit
  };
  virtual absl::StatusOr<std::vector<RequestHandle>> SubmitAll(
      std::vector<Submission> submissions) = 0;
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
