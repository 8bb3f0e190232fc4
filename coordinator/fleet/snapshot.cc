// The group as operators see it.

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "coordinator/fleet/group.h"

namespace bitshard {

const char* Name(Member::Phase phase) {
  switch (phase) {
    case Member::Phase::kConnected:
      return "connected";
    case Member::Phase::kRegistered:
      return "registered";
    case Member::Phase::kLoading:
      return "loading";
    case Member::Phase::kLoaded:
      return "loaded";
    case Member::Phase::kJoining:
      return "joining";
    case Member::Phase::kJoined:
      return "joined";
    case Member::Phase::kAllocating:
      return "allocating";
    case Member::Phase::kReady:
      return "ready";
    case Member::Phase::kQuiescing:
      return "quiescing";
  }
  return "unknown";
}

GroupSnapshot Group::Snapshot(absl::Time now) const {
  GroupSnapshot snapshot;
  snapshot.term = term_;
  snapshot.epoch = epoch_;
  snapshot.world = options_.world;
  snapshot.cache_blocks = cache_blocks_;
  snapshot.ranks.resize(options_.world);
  const uint32_t registered = Registered();
  for (uint32_t rank = 0; rank < options_.world; ++rank) snapshot.ranks[rank].rank = rank;
  for (const auto& [connection, member] : members_) {
    if (member.phase == Member::Phase::kConnected) continue;
    if (!member.has_rank()) {
      snapshot.spares.push_back({member.registration.host(), member.registration.pid()});
      continue;
    }
    RankSnapshot& rank = snapshot.ranks[*member.rank];
    rank.present = true;
    rank.phase = member.phase;
    rank.host = member.registration.host();
    rank.pid = member.registration.pid();
    rank.device = member.registration.device();
    rank.isa = member.registration.isa();
    rank.read_bytes_per_s = member.registration.bandwidth_bytes_per_s();
    rank.step = member.step;
    rank.op = member.op;
    rank.busy = member.busy;
    rank.acked_step = member.acked_step;
    rank.heartbeat_age = now - member.last_heard;
    rank.done_bytes = member.progress.done_bytes();
    rank.total_bytes = member.progress.total_bytes();
    rank.weight_bytes = member.loaded.weight_bytes();
    rank.read_bytes = member.loaded.read_bytes();
    rank.padding_bytes = member.loaded.padding_bytes();
    rank.vector_bytes = member.loaded.vector_bytes();
    rank.deterministic = !member.loaded.nondeterministic();
    rank.memory = member.memory;
    rank.memory_age = now - member.memory_at;
    rank.bring_up = member.bring_up;
    rank.kernels.assign(member.loaded.kernels().begin(), member.loaded.kernels().end());
    rank.probe.assign(member.loaded.probe().begin(), member.loaded.probe().end());
  }
  switch (state_) {
    case State::kReady:
      snapshot.state = GroupSnapshot::State::kReady;
      break;
    case State::kEnding:
      snapshot.state = GroupSnapshot::State::kLost;
      break;
    default:
      snapshot.state =
          last_loss_.empty() ? GroupSnapshot::State::kForming : GroupSnapshot::State::kLost;
  }
  if (state_ == State::kWaiting && registered < options_.world) {
    snapshot.detail =
        absl::StrCat("waits for workers: ", registered, " of ", options_.world, " registered");
  } else if (state_ != State::kReady) {
    snapshot.detail = absl::StrCat("phase ", Name(state_));
  }
  if (!last_loss_.empty()) absl::StrAppend(&snapshot.detail, "; last loss: ", last_loss_);
  return snapshot;
}

}  // namespace bitshard
