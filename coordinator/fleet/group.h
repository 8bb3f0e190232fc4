// The group of workers as a state machine: who has which rank, how far bring-up is, which plans are
// out, who is to blame.
//
// Pure: no gRPC, no threads, no clock of its own. Events go in with the time at which they
// happened, effects come out through GroupOutput, in order, before the call returns. The owner
// (fleet.cc) serialises the calls.
//
//   waiting -> loading -> joining -> allocating -> ready -> ending -> waiting ...
//
// `waiting` lasts until `world` workers are registered; those beyond are spares. An epoch begins
// with joining and ends at the first lost rank; a rank that came to rest with its weights intact
// keeps its place. Invariants: OnGroupReady and OnGroupLost alternate, each once an epoch that got
// ready; no OnStepDone between a loss and the next OnGroupReady; results are given out in the order
// of the steps.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "coordinator/engine/step_executor.h"
#include "coordinator/fleet/group_options.h"
#include "coordinator/fleet/member.h"
#include "proto/plan.pb.h"
#include "proto/worker.pb.h"

namespace bitshard {

// Effects. Called from within Group's methods; must not call back into it.
class GroupOutput {
 public:
  virtual ~GroupOutput() = default;
  virtual void Send(absl::Span<const ConnectionId> to,
                    const internal::CoordinatorMessage& message) = 0;
  // Ends the stream after what was sent before. No event of this connection may follow.
  virtual void Close(ConnectionId connection, const absl::Status& why) = 0;
  virtual void OnGroupReady(const GroupInfo& info) = 0;
  virtual void OnStepDone(std::unique_ptr<internal::StepResult> result) = 0;
  virtual void OnStepMoved() {}  // a rank is further in a step than it last told
  virtual void OnGroupLost(uint64_t term, uint64_t epoch, const absl::Status& why) = 0;
  // No group can form with this model and these workers: trying again would not help.
  virtual void OnHopeless(const absl::Status& why) = 0;
};

class Group {
 public:
  enum class State { kWaiting, kLoading, kJoining, kAllocating, kReady, kEnding };

  // `output` outlives the group.
  Group(GroupOptions options, GroupOutput* output);

  void Connected(ConnectionId connection, absl::Time now);
  void Received(ConnectionId connection, std::unique_ptr<internal::WorkerMessage> message,
                absl::Time now);
  void Disconnected(ConnectionId connection, absl::Time now);
  void SubmitPlan(std::unique_ptr<internal::StepPlan> plan, absl::Time now);
  // Heartbeats and timeouts; call at least every 100 ms.
  void Tick(absl::Time now);
  // Lets all workers go. `exit`: they need not come back.
  void Release(const std::string& reason, bool exit);

  GroupSnapshot Snapshot(absl::Time now) const;
  State state() const { return state_; }

 private:
  struct OutstandingPlan {
    uint64_t step = 0;
    absl::Time submitted;
  };

  // Registration (registration.cc).
  void Register(Member& member, const internal::Register& registration, absl::Time now);
  absl::Status Acceptable(const internal::Register& registration) const;
  // True when the workers compute on GPUs: all of them then do.
  bool OnGpus() const;

  // Bring-up (group.cc). TryForm begins it when the group is waiting and there are enough workers.
  void TryForm(absl::Time now);
  bool AssignRanks(absl::Time now);
  bool CheckOps(absl::Time now);
  void StartLoading(absl::Time now);
  void StartJoining(absl::Time now);
  void StartAllocating(absl::Time now);
  void BecomeReady(absl::Time now);
  // True when every rank is in `phase`.
  bool AllIn(Member::Phase phase) const;

  void OnLoaded(Member& member, const internal::Loaded& loaded, absl::Time now);
  void OnRendezvous(Member& member, const internal::Rendezvous& rendezvous, absl::Time now);
  void OnJoined(Member& member, const internal::Joined& joined, absl::Time now);
  void OnReady(Member& member, const internal::Ready& ready, absl::Time now);
  void OnResult(Member& member, std::unique_ptr<internal::StepResult> result, absl::Time now);
  void OnQuiesced(Member& member, const internal::Quiesced& quiesced, absl::Time now);
  void OnHeartbeat(Member& member, const internal::Heartbeat& heartbeat, absl::Time now);
  void DeclareHopeless(const absl::Status& why);
  void OnFailure(Member& member, const internal::Failure& failure, absl::Time now);
  // A message that the protocol does not allow now.
  void Unexpected(Member& member, const std::string& what, absl::Time now);

  // Loss (loss.cc).
  // The member is gone, or of no use: forgets it and, if it had a rank, ends what it took part in.
  // `why` says what happened to it: "connection closed".
  void Lose(ConnectionId connection, const absl::Status& why, absl::Time now);
  // Lets a connected member go first; `exit`: it need not come back.
  void Drop(ConnectionId connection, const absl::Status& why, bool exit, absl::Time now);
  // Ends the epoch, or the bring-up, for the ranks that are left.
  void EndEpoch(const absl::Status& why, absl::Time now);
  void BackOff(absl::Time now);
  void FinishEnding(absl::Time now);
  void CheckSilence(absl::Time now);
  void CheckPhaseTimeouts(absl::Time now);
  void CheckStall(absl::Time now);
  // Lets go of a part of the group that has waited for the rest too long: another coordinator may
  // hold the others, and wait for these.
  void CheckPartial(absl::Time now);

  Member* Find(ConnectionId connection);
  Member* Rank(uint32_t rank);
  std::vector<ConnectionId> RankConnections() const;
  uint32_t Registered() const;
  void SendTo(const Member& member, internal::CoordinatorMessage message);
  void SendToRanks(internal::CoordinatorMessage message);
  void Heartbeats(absl::Time now);

  const GroupOptions options_;
  GroupOutput* const output_;

  State state_ = State::kWaiting;
  std::map<ConnectionId, Member> members_;  // ascending = in order of arrival
  std::vector<internal::RankPlan>
      plans_;  // built once: a restart or a replacement never moves a cut
  bool hopeless_ = false;
  uint64_t term_ = 0;
  uint64_t epoch_ = 0;
  bool was_ready_ = false;              // in any epoch: model, files and memory have sufficed once
  bool ready_announced_ = false;        // OnGroupReady of this epoch has been given out
  internal::NumericsOptions numerics_;  // with what the workers' device decided
  uint32_t cache_blocks_ = 0;
  uint64_t last_step_ = 0;  // last submitted in this epoch
  std::deque<OutstandingPlan> outstanding_;
  absl::Time state_since_ = absl::InfinitePast();
  absl::Time last_heartbeat_ = absl::InfinitePast();
  absl::Time last_tick_ = absl::InfinitePast();
  absl::Time not_before_ =
      absl::InfinitePast();  // no new attempt to form earlier: workers that fail again and again
  uint32_t failed_attempts_ = 0;  // in a row
  std::string last_loss_;         // for people
  // A rank reported that its communicator broke: probably a symptom. The rank that caused it gets
  // until then to show.
  std::optional<absl::Time> blame_deadline_;
  absl::Status blame_status_;
  std::optional<absl::Time> partial_deadline_;  // see CheckPartial
  std::minstd_rand random_;                     // differs from coordinator to coordinator
};

const char* Name(Group::State state);

}  // namespace bitshard
