// The engine's state and rules without its thread and without a clock: each call gets the time. The
// thread in engine.cc drives it; the simulator in tests/coordinator/engine drives it on a virtual
// clock.
//
// Owned by the engine thread. Calls go out to the executor (plans), the sinks (deltas, ends), the
// metrics, and the observer; none of them may call back into this object.
//
// Invariant: every accepted request is live until its one OnEnd; when OnEnd is called its blocks
// and slot are back.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_metrics.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/engine/mask_job.h"
#include "coordinator/engine/pace.h"
#include "coordinator/engine/step_executor.h"
#include "coordinator/engine/text_stream.h"
#include "coordinator/schedule/scheduler.h"
#include "coordinator/text/tokenizer.h"

namespace bitshard {

class EngineCore {
 public:
  class Observer {
   public:
    virtual ~Observer() = default;
    // The request is over, FillStats no longer counts it; its OnEnd comes next.
    virtual void BeforeEnd(SequenceId id, EndReason reason, absl::StatusCode code) = 0;
    // The request is in a plan for the first time.
    virtual void OnStarted(SequenceId id) = 0;
  };
  struct Accepted {
    SequenceId id = 0;
    GenerateRequest request;  // `received` is set
    // Shared with the frontend's stream, which may outlive the request.
    std::shared_ptr<RequestSink> sink;
  };

  // All pointers outlive this object. Without `masks` they are computed at once, here.
  EngineCore(const Engine::Options& options, const Tokenizer* tokenizer, StepExecutor* executor,
             EngineMetrics* metrics, Observer* observer, MaskRunner* masks = nullptr);

  void Accept(Accepted accepted, absl::Time now);
  // Nothing happens when the request has ended already.
  void Cancel(SequenceId id, absl::Time now);
  void GroupReady(const GroupInfo& info, absl::Time now);
  void GroupLost(uint64_t term, uint64_t epoch, const absl::Status& why, absl::Time now);
  void StepDone(const internal::StepResult& result, absl::Time now);
  void MaskDone(MaskResult result, absl::Time now);
  void EndAll(const absl::Status& status, EndReason reason, absl::Time now);

  // Ends what has passed its deadline, then plans steps while fewer than async_depth are out. Call
  // it after the others, and at NextWakeup().
  void Advance(absl::Time now);
  // When Advance has something to do though nothing was called: a deadline, or the next idle plan.
  absl::Time NextWakeup() const;

  // Nothing is out and nobody waits.
  bool idle() const { return scheduler_.steps_in_flight() == 0 && live_.empty(); }
  size_t live() const { return live_.size(); }
  // Why there is no group; OK while there is one, or nothing is known.
  const absl::Status& group_cause() const { return group_cause_; }
  // All but received, rejected, finished, waiting_tokens, which admission knows.
  void FillStats(EngineStats* stats) const;
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  struct Live {
    Live(Accepted accepted, const Tokenizer* tokenizer)
        : request(std::move(accepted.request)),
          sink(std::move(accepted.sink)),
          text(tokenizer, request) {}
    GenerateRequest request;
    std::shared_ptr<RequestSink> sink;
    TextStream text;
    std::shared_ptr<GrammarPlace> place;  // null: not constrained; a job's while one is out
    uint32_t cached_tokens = 0;           // of the prompt, from the prefix cache
    uint32_t completion_tokens = 0;
    std::vector<TokenLogprobs> scores;  // committed so far
    absl::Time accepted;
    std::optional<absl::Time> first_planned, first_token, last_token;
    // Since when it makes up for lost blocks; how long it has done so until its first token, and
    // after it.
    std::optional<absl::Time> recompute_since;
    absl::Duration recompute_before, recompute_after;
    uint32_t preemptions = 0;  // that recompute_since knows of
  };
  struct PlanOut {
    uint64_t step;
    StepKind kind;
    uint32_t tokens, rows;
    StepLoad load;
    absl::Time sent;
  };

  // False when there is nothing to plan.
  bool PlanStep(absl::Time now);
  void CommitToken(const Commit& commit, absl::Time now);
  void CommitScores(const Commit& commit, absl::Time now);
  // Asks for the mask of a constrained request's next output, after `tokens`.
  void FindMask(SequenceId id, std::vector<int32_t> tokens, absl::Time now);
  // Of those that have run before: preempted since the last look, or all, their group being lost.
  void BeginRecompute(bool all, absl::Time now);
  static void EndRecompute(Live& live, absl::Time now);
  // The only way out for a request. `finish` with an OK status.
  void End(SequenceId id, absl::Status status, EndReason reason, TextStream::End finish,
           absl::Time now);
  void End(SequenceId id, absl::Status status, EndReason reason, absl::Time now) {
    End(id, std::move(status), reason, {}, now);
  }
  void EndExpired(SequenceId id, absl::Time now);

  const Engine::Options options_;
  const Tokenizer* const tokenizer_;
  StepExecutor* const executor_;
  EngineMetrics* const metrics_;
  Observer* const observer_;
  MaskRunner* const masks_;

  Scheduler scheduler_;
  Pace pace_;
  bool no_room_ = false, limited_ = false;  // of the last schedule
  absl::flat_hash_map<SequenceId, std::unique_ptr<Live>> live_;
  std::set<std::pair<absl::Time, SequenceId>> deadlines_;  // of live requests that have one

  EngineStats::GroupState group_state_ = EngineStats::GroupState::kForming;
  absl::Status group_cause_;
  std::optional<LossCause> last_loss_;  // until a group is ready again
  GroupInfo group_;                     // of the last epoch
  uint64_t last_step_ = 0;              // sent in this epoch
  std::deque<PlanOut> plans_out_;       // in step with the scheduler's steps in flight
  uint64_t steps_ = 0, epoch_steps_ = 0, tokens_ = 0;
  uint32_t masks_out_ = 0;  // jobs whose results are to come
  absl::Time last_progress_ = absl::InfinitePast();
};

}  // namespace bitshard
