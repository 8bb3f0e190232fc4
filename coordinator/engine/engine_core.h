// The engine's state and rules without its thread and without a clock: each call gets the time. The
// thread in engine.cc drives it; the simulator in tests/coordinator/engine drives it on a virtual
// clock.
//
// Owned by the engine thread. Calls go out to the executor (plans), the sinks (deltas, ends), the
// metrics, and the observer; none of them may call back into this object.
//
// A request's choices are sequences of the scheduler with ids of their own. Those after the first
// come to the scheduler once the plan that draws the first one's first token is out: then they find
// the prompt in the prefix cache, and it is computed once.
//
// Invariant: every accepted request is live until its one OnEnd; when OnEnd is called its blocks
// and slots are back.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "coordinator/engine/engine.h"
#include "coordinator/engine/engine_metrics.h"
#include "coordinator/engine/engine_stats.h"
#include "coordinator/engine/live_request.h"
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
    // This choice of the request is in a plan for the first time.
    virtual void OnStarted(SequenceId id, uint32_t choice) = 0;
  };
  struct Accepted {
    SequenceId id = 0;        // the first of as many as the request has choices
    GenerateRequest request;  // `received` is set
    // Shared with the frontend's stream, which may outlive the request.
    std::shared_ptr<RequestSink> sink;
  };

  // All pointers outlive this object. Without `masks` they are computed at once, here.
  EngineCore(const Engine::Options& options, const Tokenizer* tokenizer, StepExecutor* executor,
             EngineMetrics* metrics, Observer* observer, MaskRunner* masks = nullptr);

  void Accept(Accepted accepted, absl::Time now);
  // Nothing happens when the request has ended already.
  void Cancel(SequenceId id, absl::Time now, absl::string_view why = "cancelled by the caller");
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
  // All but received, rejected, finished, waiting, waiting_choices and waiting_tokens, which
  // admission knows.
  void FillStats(EngineStats* stats) const;
  // Of live requests: prompt tokens of choices that run or have ended. As admission counts them.
  uint64_t taken_prompt_tokens() const;
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  using Live = LiveRequest;
  struct PlanOut {
    uint64_t step;
    StepKind kind;
    uint32_t tokens, rows;
    StepLoad load;
    absl::Time sent;
    // How far it brings the known tokens of sequences whose callers want to know.
    std::vector<std::pair<SequenceId, uint32_t>> computed;
  };

  // The live choice that a sequence is; nothing when it, or its request, has ended.
  struct Place {
    Live* request = nullptr;
    uint32_t index = 0;

    LiveChoice& choice() const { return request->choices[index]; }
  };
  std::optional<Place> Find(SequenceId sequence) const;
  // REQUIRES: it is live.
  Place At(SequenceId sequence) const;

  // May be the end of a resumed request with a constraint.
  void AddChoice(Live& live, uint32_t index, absl::Time now);
  // Gives the scheduler the choices after the first. Nothing happens the second time.
  void Release(Live& live, absl::Time now);
  // False when there is nothing to plan.
  bool PlanStep(absl::Time now);
  void CommitToken(const Commit& commit, absl::Time now);
  void CommitScores(const Commit& commit, absl::Time now);
  void CommitEmbedding(const Commit& commit, absl::Time now);
  // Of a request that generates nothing: all that was asked about its tokens is there.
  void EndGiven(const Place& place, absl::Time now);
  // Asks for the mask of a constrained choice's next output, after `tokens`.
  void FindMask(SequenceId sequence, std::vector<int32_t> tokens, absl::Time now);
  // Of those that have run before: preempted since the last look, or all, their group being lost.
  void BeginRecompute(bool all, absl::Time now);
  static void EndRecompute(Live& live, absl::Time now);
  // A choice is complete; with the last one the request ends.
  void EndChoice(const Place& place, TextStream::End finish, absl::Time now);
  // Out of the scheduler, if it is there: quarantined, unfit and unreleased ones are not.
  void TakeOut(Live& live, uint32_t index);
  struct Complete {
    uint32_t choice = 0;
    TextStream::End finish;
  };
  static RequestEnd EndOf(const Live& live, Complete complete, absl::Time now);
  static RequestTimings TimingsOf(const Live& live, std::optional<absl::Time> first_token,
                                  absl::Time now);
  // The only way out for a request: with its last choice, or with an error, which ends all choices.
  void End(SequenceId id, absl::Status status, EndReason reason, std::optional<Complete> last,
           absl::Time now);
  void End(SequenceId id, absl::Status status, EndReason reason, absl::Time now) {
    End(id, std::move(status), reason, std::nullopt, now);
  }
  void EndExpired(SequenceId id, absl::Time now);

  // engine_core_status.cc. Each tells callers that want to know.
  static void Tell(Live& live, const RequestStatus& status);  // unless that was the last it heard
  // Those that wait for their first step, now and then.
  void TellQueue(absl::Time now);
  void TellPreempted();
  void TellRecovering();
  void TellEntered(const ScheduledRow& row);
  void TellComputed(SequenceId sequence, uint32_t tokens);

  const Engine::Options options_;
  const Tokenizer* const tokenizer_;
  StepExecutor* const executor_;
  EngineMetrics* const metrics_;
  Observer* const observer_;
  MaskRunner* const masks_;

  Scheduler scheduler_;
  Pace pace_;
  bool no_room_ = false, next_is_batch_ = false, limited_ = false;  // of the last schedule
  absl::btree_map<SequenceId, std::unique_ptr<Live>> live_;         // by the id of the request
  uint32_t ended_choices_ = 0;                                      // of live requests
  uint64_t ended_prompt_tokens_ = 0;                                // of these, as counted
  std::set<std::pair<absl::Time, SequenceId>> deadlines_;  // of live requests that have one
  std::set<SequenceId> queued_;  // requests with status_events, until their first step
  bool queue_news_ = false;      // one of them may not have heard anything yet
  absl::Time next_queue_look_ = absl::InfinitePast(), next_news_look_ = absl::InfinitePast();

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
