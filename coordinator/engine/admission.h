// Who may come in, and the book of who is in: the counts of EngineStats that must add up.
//
// Not thread-safe: the engine keeps it under its mutex, because requests come in on the callers'
// threads while the engine thread reports what became of them. Admit takes microseconds: no
// scheduling state is needed for it.
//
// A queue is bounded in requests, in prompt tokens and in the wait that is predicted. The last
// eighth of it is kept for tenants that do not hold most of it already.
//
// Invariant: received = rejected + finished + live, and live = waiting + running.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

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
  // contract has it.
  absl::StatusOr<SequenceId> Admit(const GenerateRequest& request, absl::Time now);
  // The live request of that name.
  std::optional<SequenceId> Find(const std::string& caller, const std::string& request_id) const;
  // The request has its first step, it waits no more. REQUIRES: live.
  void Started(SequenceId id);
  // The request is over; its name is free again. REQUIRES: live.
  void End(SequenceId id, EndReason reason, absl::StatusCode code);

  // No more admissions: DrainingError.
  void Close() { closed_ = true; }
  // Why the group is not ready; told to callers.
  void set_group_cause(absl::Status why) { group_cause_ = std::move(why); }
  // What the engine thread knows: group, steps, blocks, running; the fields of admission are
  // ignored. `running_prompt_tokens`: of the running requests.
  void SetScheduling(const EngineStats& stats, uint64_t running_prompt_tokens);

  uint64_t live() const { return live_.size(); }
  EngineStats Stats() const;

 private:
  using Name = std::pair<std::string, std::string>;  // caller, request id
  struct Entry {
    Name name;
    uint64_t prompt_tokens;
    ServiceLevel level;
    bool started = false;
  };
  struct Refusal {
    RejectReason reason;
    absl::Status status;
  };
  std::optional<Refusal> Judge(const GenerateRequest& request, absl::Time now) const;
  std::optional<Refusal> JudgeFields(const GenerateRequest& request) const;
  std::optional<Refusal> JudgeQueue(const GenerateRequest& request) const;
  std::optional<Refusal> JudgeWait(const GenerateRequest& request, absl::Time now) const;
  absl::Duration Predict(const ServiceLevel& level, const std::string& tenant,
                         uint64_t tokens) const;
  // Requests and tokens that wait, those that wait again included.
  WaitingBook::Sum Waiting() const;

  const Engine::Options options_;
  absl::flat_hash_map<Name, SequenceId> by_name_;
  absl::flat_hash_map<SequenceId, Entry> live_;
  SequenceId last_id_ = 0;
  bool closed_ = false;
  absl::Status group_cause_;
  uint64_t received_ = 0, rejected_ = 0, finished_ = 0;
  RequestLedger ledger_;
  uint64_t live_prompt_tokens_ = 0, running_prompt_tokens_ = 0;
  WaitingBook book_;  // those that wait for their first step
  EngineStats scheduling_;
};

}  // namespace bitshard
