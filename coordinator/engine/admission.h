// Who may come in, and the book of who is in: the counts of EngineStats that must add up.
//
// Not thread-safe: the engine keeps it under its mutex, because requests come in on the callers'
// threads while the engine thread reports what became of them. Admit takes microseconds: no
// scheduling state is needed for it.
//
// A queue is bounded in requests, in prompt tokens and in the wait that is predicted: nearly all
// waits are to stay within the bound, so the prediction counts with its error (WaitError). Before a
// deadline it counts as it is: who might make it is taken. The last eighth of the queue is kept for
// tenants that do not hold most of it already. Each choice of a request counts as one there; its
// prompt counts once, for the others find it in the prefix cache, or, with the cache off, with each
// of them.
//
// Invariant: received = rejected + finished + live, and live = waiting + running, in requests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/engine/outcome.h"
#include "coordinator/engine/waiting_book.h"
#include "coordinator/schedule/sequence.h"

namespace bitshard {

class Admission {
 public:
  explicit Admission(const Engine::Options& options);

  // The new request's id (ids grow in the order of admission), or the refusal as the status
  // contract has it. One that supersedes takes the name over; the caller ends the other.
  absl::StatusOr<SequenceId> Admit(const GenerateRequest& request, absl::Time now);
  // The same for requests of one caller, name and level: all, or none. Their queue and wait are
  // judged as those of one request. REQUIRES: not empty.
  absl::StatusOr<std::vector<SequenceId>> AdmitAll(
      absl::Span<const GenerateRequest* const> requests, absl::Time now);
  // The live request of that name, or one of several.
  std::optional<SequenceId> Find(const std::string& caller, const std::string& request_id) const;
  // The choice of the request has its first step, it waits no more. REQUIRES: live, not told yet.
  // Its wait tells how good the prediction was, unless the time is not known.
  void Started(SequenceId id, uint32_t choice = 0, absl::Time now = absl::InfinitePast());
  // The request is over; its name is free again. REQUIRES: live.
  void End(SequenceId id, EndReason reason, absl::StatusCode code);

  // No more admissions: DrainingError.
  void Close() { closed_ = true; }
  // Why the group is not ready; told to callers.
  void set_group_cause(absl::Status why) { group_cause_ = std::move(why); }
  // What the engine thread knows: group, steps, blocks, running; the fields of admission are
  // ignored. `taken_prompt_tokens`: of the choices that run or have ended, of live requests.
  void SetScheduling(const EngineStats& stats, uint64_t taken_prompt_tokens);

  uint64_t live() const { return live_.size(); }
  EngineStats Stats() const;

 private:
  using Name = std::pair<std::string, std::string>;  // caller, request id
  struct Entry {
    Name name;
    uint64_t prompt_tokens, further_tokens;  // of the first choice, of each after it
    ServiceLevel level;
    uint32_t choices;
    bool first_waits = true;  // for its first step
    uint32_t further_wait;    // how many
    // The wait that was predicted, when it says something about the bound; when, and in which
    // epoch.
    absl::Duration predicted = absl::ZeroDuration();
    absl::Time admitted = {};
    uint64_t epoch = 0;

    uint64_t tokens() const { return prompt_tokens + (choices - 1) * further_tokens; }
  };
  struct Named {
    SequenceId first, last;
    uint64_t live;  // of the ids from first to last that are requests of that name
  };
  struct Refusal {
    RejectReason reason;
    absl::Status status;
  };
  SequenceId Enter(const GenerateRequest& request);
  // `predicted`: the wait, when there is a bound on it.
  std::optional<Refusal> Judge(absl::Span<const GenerateRequest* const> requests, absl::Time now,
                               absl::Duration* predicted) const;
  // All but what depends on how much waits.
  std::optional<Refusal> JudgeAlone(const GenerateRequest& request, absl::Time now) const;
  std::optional<Refusal> JudgeFields(const GenerateRequest& request) const;
  static std::optional<Refusal> JudgeResumed(const GenerateRequest& request, int32_t vocab_size);
  // `sum`: what comes in with it, itself included; likewise `tokens`.
  std::optional<Refusal> JudgeQueue(const GenerateRequest& request,
                                    const WaitingBook::Sum& sum) const;
  std::optional<Refusal> JudgeWait(const GenerateRequest& request, uint64_t tokens, absl::Time now,
                                   absl::Duration* predicted) const;
  absl::Duration Predict(const ServiceLevel& level, const std::string& tenant,
                         uint64_t tokens) const;
  // Choices and tokens that wait, those that wait again included.
  WaitingBook::Sum Waiting() const;
  uint64_t TokensOf(const GenerateRequest& request) const;

  const Engine::Options options_;
  absl::flat_hash_map<Name, Named> by_name_;
  absl::flat_hash_map<SequenceId, Entry> live_;
  SequenceId last_id_ = 0;
  bool closed_ = false;
  absl::Status group_cause_;
  uint64_t received_ = 0, rejected_ = 0, finished_ = 0;
  RequestLedger ledger_;
  uint64_t live_choices_ = 0, live_prompt_tokens_ = 0, taken_prompt_tokens_ = 0;
  WaitingBook book_;  // those that wait for their first step
  WaitError wait_error_;
  EngineStats scheduling_;
};

}  // namespace bitshard
