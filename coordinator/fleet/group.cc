#include "coordinator/fleet/group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "coordinator/fleet/cache_size.h"
#include "coordinator/fleet/collective_choice.h"
#include "kernels/base/check.h"
#include "kernels/base/log.h"

namespace bitshard {
namespace {

constexpr size_t kMaxRendezvousBytes = size_t{64} << 10;

}  // namespace

const char* Name(Group::State state) {
  switch (state) {
    case Group::State::kWaiting:
      return "waiting";
    case Group::State::kLoading:
      return "loading";
    case Group::State::kJoining:
      return "joining";
    case Group::State::kAllocating:
      return "allocating";
    case Group::State::kReady:
      return "ready";
    case Group::State::kEnding:
      return "ending";
  }
  return "unknown";
}

Group::Group(GroupOptions options, GroupOutput* output)
    : options_(std::move(options)),
      output_(output),
      random_(static_cast<uint32_t>(std::hash<std::string>{}(options_.instance))) {
  CHECK_GT(options_.world, 0u);
}

Member* Group::Find(ConnectionId connection) {
  const auto it = members_.find(connection);
  return it == members_.end() ? nullptr : &it->second;
}

Member* Group::Rank(uint32_t rank) {
  for (auto& [connection, member] : members_) {
    if (member.rank == rank) return &member;
  }
  return nullptr;
}

std::vector<ConnectionId> Group::RankConnections() const {
  std::vector<ConnectionId> connections;
  for (const auto& [connection, member] : members_) {
    if (member.has_rank()) connections.push_back(connection);
  }
  return connections;
}

uint32_t Group::Registered() const {
  return static_cast<uint32_t>(std::count_if(
      members_.begin(), members_.end(),
      [](const auto& entry) { return entry.second.phase != Member::Phase::kConnected; }));
}

void Group::SendTo(const Member& member, internal::CoordinatorMessage message) {
  output_->Send({member.connection}, message);
}

void Group::SendToRanks(internal::CoordinatorMessage message) {
  output_->Send(RankConnections(), message);
}

bool Group::AllIn(Member::Phase phase) const {
  uint32_t count = 0;
  for (const auto& [connection, member] : members_)
    count += member.has_rank() && member.phase == phase;
  return count == options_.world;
}

void Group::Received(ConnectionId connection, std::unique_ptr<internal::WorkerMessage> message,
                     absl::Time now) {
  Member* member = Find(connection);
  if (member == nullptr) return;  // let go meanwhile
  member->last_heard = now;
  if (member->phase == Member::Phase::kConnected && !message->has_registration()) {
    Drop(connection, absl::FailedPreconditionError("the first message is not Register"),
         /*exit=*/true, now);
    return;
  }
  switch (message->body_case()) {
    case internal::WorkerMessage::kRegistration:
      Register(*member, message->registration(), now);
      break;
    case internal::WorkerMessage::kProgress:
      if (message->progress().done_bytes() != member->progress.done_bytes() ||
          message->progress().phase() != member->progress.phase()) {
        member->progress_at = now;
      }
      member->progress = message->progress();
      break;
    case internal::WorkerMessage::kLoaded:
      OnLoaded(*member, message->loaded(), now);
      break;
    case internal::WorkerMessage::kRendezvous:
      OnRendezvous(*member, message->rendezvous(), now);
      break;
    case internal::WorkerMessage::kJoined:
      OnJoined(*member, message->joined(), now);
      break;
    case internal::WorkerMessage::kReady:
      OnReady(*member, message->ready(), now);
      break;
    case internal::WorkerMessage::kStepResult:
      OnResult(*member, std::unique_ptr<internal::StepResult>(message->release_step_result()), now);
      break;
    case internal::WorkerMessage::kQuiesced:
      OnQuiesced(*member, message->quiesced(), now);
      break;
    case internal::WorkerMessage::kHeartbeat:
      OnHeartbeat(*member, message->heartbeat(), now);
      break;
    case internal::WorkerMessage::kFailure:
      OnFailure(*member, message->failure(), now);
      break;
    case internal::WorkerMessage::kMemoryReport:
      member->memory = message->memory_report();
      member->memory_at = now;
      break;
    case internal::WorkerMessage::kLeaving:
      Lose(connection,
           absl::UnavailableError(absl::StrCat("is leaving: ", message->leaving().reason())), now);
      break;
    case internal::WorkerMessage::BODY_NOT_SET:
      Unexpected(*member, "an empty or unknown message", now);
      break;
  }
}

void Group::TryForm(absl::Time now) {
  if (state_ != State::kWaiting || hopeless_ || now < not_before_) return;
  if (Registered() < options_.world) return;
  if (plans_.empty()) {
    absl::StatusOr<std::vector<internal::RankPlan>> plans = options_.build_plans(options_.shares);
    if (plans.ok() && plans->size() != options_.world) {
      plans =
          absl::InternalError(absl::StrCat(plans->size(), " plans for ", options_.world, " ranks"));
    }
    if (!plans.ok()) {
      DeclareHopeless(plans.status());
      return;
    }
    plans_ = *std::move(plans);
  }
  if (!CheckOps(now) || !AssignRanks(now)) return;
  StartLoading(now);
}

bool Group::AssignRanks(absl::Time) {
  std::vector<Member*> chosen(options_.world, nullptr);
  std::vector<Member*> others;
  // Who has a rank in this process keeps it; then who holds the weights of one; in order of
  // arrival.
  for (auto& [connection, member] : members_) {
    if (member.has_rank()) chosen[*member.rank] = &member;
  }
  for (auto& [connection, member] : members_) {
    if (member.phase == Member::Phase::kConnected || member.has_rank()) continue;
    const internal::Register& held = member.registration;
    if (!held.plan_digest().empty() && held.held_rank() < options_.world &&
        chosen[held.held_rank()] == nullptr &&
        plans_[held.held_rank()].digest() == held.plan_digest()) {
      chosen[held.held_rank()] = &member;
    } else {
      others.push_back(&member);
    }
  }
  std::stable_sort(others.begin(), others.end(), [](const Member* a, const Member* b) {
    return a->registration.local_rank() < b->registration.local_rank();
  });
  auto next = others.begin();
  for (Member*& member : chosen) {
    if (member != nullptr) continue;
    if (next == others.end()) return false;
    member = *next++;
  }
  for (uint32_t rank = 0; rank < options_.world; ++rank) chosen[rank]->rank = rank;
  return true;
}

void Group::StartLoading(absl::Time now) {
  for (const auto& [connection, member] : members_)
    term_ = std::max(term_, member.registration.term());
  ++term_;
  state_ = State::kLoading;
  state_since_ = now;
  numerics_ = options_.numerics;
  if (numerics_.max_step_tokens() == 0)
    numerics_.set_max_step_tokens(
        std::max(OnGpus() ? kGpuStepTokens : kCpuStepTokens, numerics_.max_slots()));
  LogInfo("fleet: event=group_loading term={} world={}", term_, options_.world);
  for (auto& [connection, member] : members_) {
    if (!member.has_rank()) continue;
    member.phase = Member::Phase::kLoading;
    member.phase_since = member.progress_at = now;
    member.progress.Clear();
    internal::CoordinatorMessage message;
    internal::Assign& assign = *message.mutable_assign();
    assign.set_term(term_);
    assign.set_rank(*member.rank);
    assign.set_world(options_.world);
    *assign.mutable_plan() = plans_[*member.rank];
    *assign.mutable_numerics() = numerics_;
    SendTo(member, std::move(message));
    LogInfo("fleet: event=rank_assigned rank={} term={} pid={} host={} held={}", *member.rank,
            term_, member.registration.pid(), member.registration.host(),
            member.registration.plan_digest() == plans_[*member.rank].digest());
  }
}

void Group::OnLoaded(Member& member, const internal::Loaded& loaded, absl::Time now) {
  // A second answer may come when a bring-up failed half way and the next one asked again: the
  // order of the stream makes the first as good.
  if (state_ != State::kLoading || member.phase != Member::Phase::kLoading) return;
  member.loaded = loaded;
  member.phase = Member::Phase::kLoaded;
  member.phase_since = now;
  // What it would say if it registered now.
  member.registration.set_plan_digest(plans_[*member.rank].digest());
  member.registration.set_held_rank(*member.rank);
  LogInfo("fleet: event=rank_loaded rank={} weight_bytes={} read_bytes={}", *member.rank,
          loaded.weight_bytes(), loaded.read_bytes());
  if (AllIn(Member::Phase::kLoaded)) StartJoining(now);
}

void Group::StartJoining(absl::Time now) {
  uint64_t blocks = options_.kv_blocks.value_or(UINT32_MAX);
  std::optional<uint64_t> bytes = options_.kv_bytes;
  if (!options_.kv_blocks && !bytes && !OnGpus()) bytes = kCpuCacheBytes;
  uint32_t poorest = 0;
  for (const auto& [connection, member] : members_) {
    if (!member.has_rank()) continue;
    const uint64_t room = member.loaded.max_cache_blocks();
    const uint64_t block_bytes = CacheBytesPerBlock(plans_[*member.rank], numerics_);
    uint64_t wanted = options_.kv_blocks.value_or(UINT32_MAX);
    if (bytes && block_bytes > 0) wanted = std::min(wanted, *bytes / block_bytes);
    if (room < wanted && (options_.kv_blocks || options_.kv_bytes)) {
      LogWarning(
          "fleet: event=cache_cut rank={} wanted_blocks={} room_blocks={} cause=\"this worker's "
          "--memory leaves less than --kv-cache-bytes or --kv-blocks asks for\"",
          *member.rank, wanted, room);
    }
    if (const uint64_t own = std::min(room, wanted); own < blocks) {
      blocks = own;
      poorest = *member.rank;
    }
  }
  if (blocks == 0) {
    DeclareHopeless(absl::FailedPreconditionError(absl::StrCat(
        "rank ", poorest, " has no memory for a single KV block of ", numerics_.block_tokens(),
        " tokens; raise --kv-cache-bytes or the worker's --memory, or use more workers")));
    return;
  }
  cache_blocks_ = static_cast<uint32_t>(blocks);
  ++epoch_;
  ready_announced_ = false;
  last_step_ = 0;
  outstanding_.clear();
  blame_deadline_.reset();
  state_ = State::kJoining;
  state_since_ = now;
  internal::CoordinatorMessage message;
  internal::JoinCommunicator& join = *message.mutable_join_communicator();
  join.set_term(term_);
  join.set_epoch(epoch_);
  join.set_id(absl::StrCat("bitshard-", options_.instance, "-", term_, "-", epoch_));
  // Longer than our own patience: the one who knows all ranks names the missing one.
  join.set_timeout_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.join_timeout)) +
                      2000);
  // As that: whoever stalls is named by the one who sees all ranks.
  join.set_operation_timeout_ms(
      static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.stall_timeout)) + 2000);
  std::vector<const internal::Register*> ranks;
  for (const auto& [connection, member] : members_) {
    if (member.has_rank()) ranks.push_back(&member.registration);
  }
  join.set_collective(ChooseCollective(ranks));
  join.set_several_hosts(OnSeveralHosts(ranks));
  LogInfo("fleet: event=group_joining term={} epoch={} collective={} several_hosts={}", term_,
          epoch_, join.collective(), join.several_hosts());
  for (auto& [connection, member] : members_) {
    if (!member.has_rank()) continue;
    member.phase = Member::Phase::kJoining;
    member.phase_since = member.moved_at = now;
    member.acked_step = member.step = member.op = 0;
    member.busy = false;
    member.rendezvous.clear();
  }
  SendToRanks(std::move(message));
}

void Group::OnRendezvous(Member& member, const internal::Rendezvous& rendezvous, absl::Time now) {
  if (rendezvous.epoch() != epoch_ || state_ != State::kJoining ||
      member.phase != Member::Phase::kJoining)
    return;
  if (rendezvous.data().empty() || rendezvous.data().size() > kMaxRendezvousBytes ||
      !member.rendezvous.empty()) {
    Unexpected(member, "a Rendezvous that is empty, too long or the second one", now);
    return;
  }
  member.rendezvous = rendezvous.data();
  internal::CoordinatorMessage message;
  internal::RendezvousOfAll& all = *message.mutable_rendezvous_of_all();
  all.set_epoch(epoch_);
  for (uint32_t rank = 0; rank < options_.world; ++rank) {
    const Member* other = Rank(rank);
    if (other == nullptr || other->rendezvous.empty()) return;
    all.add_data(other->rendezvous);
  }
  SendToRanks(std::move(message));
}

void Group::OnJoined(Member& member, const internal::Joined& joined, absl::Time now) {
  if (joined.epoch() != epoch_ || state_ != State::kJoining ||
      member.phase != Member::Phase::kJoining)
    return;
  member.phase = Member::Phase::kJoined;
  member.phase_since = now;
  if (AllIn(Member::Phase::kJoined)) StartAllocating(now);
}

void Group::StartAllocating(absl::Time now) {
  state_ = State::kAllocating;
  state_since_ = now;
  internal::CoordinatorMessage message;
  message.mutable_allocate_cache()->set_epoch(epoch_);
  message.mutable_allocate_cache()->set_blocks(cache_blocks_);
  for (auto& [connection, member] : members_) {
    if (!member.has_rank()) continue;
    member.phase = Member::Phase::kAllocating;
    member.phase_since = now;
  }
  SendToRanks(std::move(message));
}

void Group::OnReady(Member& member, const internal::Ready& ready, absl::Time now) {
  if (ready.epoch() != epoch_ || state_ != State::kAllocating ||
      member.phase != Member::Phase::kAllocating)
    return;
  member.bring_up = ready.bring_up();
  member.phase = Member::Phase::kReady;
  member.phase_since = member.moved_at = now;
  if (AllIn(Member::Phase::kReady)) BecomeReady(now);
}

void Group::BecomeReady(absl::Time now) {
  state_ = State::kReady;
  state_since_ = now;
  ready_announced_ = was_ready_ = true;
  last_loss_.clear();
  LogInfo("fleet: event=group_ready term={} epoch={} world={} kv_blocks={}", term_, epoch_,
          options_.world, cache_blocks_);
  GroupInfo info;
  info.term = term_;
  info.epoch = epoch_;
  info.world = options_.world;
  info.cache_blocks = cache_blocks_;
  info.block_tokens = numerics_.block_tokens();
  info.max_slots = numerics_.max_slots();
  info.max_step_tokens = numerics_.max_step_tokens();
  output_->OnGroupReady(info);
}

void Group::Release(const std::string& reason, bool exit) {
  internal::CoordinatorMessage message;
  message.mutable_release()->set_reason(reason);
  message.mutable_release()->set_exit(exit);
  for (const auto& [connection, member] : members_) {
    SendTo(member, message);
    output_->Close(connection, absl::OkStatus());
  }
  members_.clear();
  state_ = State::kWaiting;
  hopeless_ = true;
}

}  // namespace bitshard
