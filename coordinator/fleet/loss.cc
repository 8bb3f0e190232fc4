// Who is lost, who is to blame, and how an epoch ends.

#include <algorithm>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "coordinator/fleet/group.h"
#include "kernels/base/log.h"

namespace bitshard {
namespace {

constexpr absl::Duration kMaxRetryDelay = absl::Seconds(16);

// "rank 1 (pid 4711 on host-a)".
std::string Describe(const Member& member) {
  const std::string process = absl::StrCat("pid ", member.registration.pid(), " on ",
                                           absl::CHexEscape(member.registration.host()));
  if (!member.has_rank()) return absl::StrCat("a worker without a rank (", process, ")");
  return absl::StrCat("rank ", *member.rank, " (", process, ")");
}

// The broken communicator of a rank is most often another rank's doing.
bool IsSymptom(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kAborted ||
         code == absl::StatusCode::kCancelled || code == absl::StatusCode::kDeadlineExceeded;
}

// Never, with these files and flags.
bool CannotBeDone(absl::StatusCode code) {
  return code == absl::StatusCode::kDataLoss || code == absl::StatusCode::kInvalidArgument ||
         code == absl::StatusCode::kUnimplemented;
}

// Would fail again with the same files and flags. Once a group has been ready, what one process
// cannot find, open or hold is its own trouble: the next one may.
bool IsHopeless(absl::StatusCode code, bool was_ready) {
  if (CannotBeDone(code)) return true;
  switch (code) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
      return !was_ready;
    default:
      return false;
  }
}

absl::StatusCode CodeOf(uint32_t wire) {
  return wire > 0 && wire <= 16 ? static_cast<absl::StatusCode>(wire) : absl::StatusCode::kUnknown;
}

// Of another program, for a log line and for people: one line without control characters.
std::string Short(const std::string& text) {
  return absl::StrReplaceAll(absl::CHexEscape(text.substr(0, 512)),
                             {{R"(\\)", R"(\\)"}, {R"(\')", "'"}});
}

}  // namespace

void Group::Disconnected(ConnectionId connection, absl::Time now) {
  Lose(connection,
       absl::UnavailableError(
           "connection closed: its process ended, was killed, or the network broke"),
       now);
}

void Group::Drop(ConnectionId connection, const absl::Status& why, bool exit, absl::Time now) {
  const Member* member = Find(connection);
  if (member == nullptr) return;
  internal::CoordinatorMessage message;
  message.mutable_release()->set_reason(std::string(why.message()));
  message.mutable_release()->set_exit(exit);
  SendTo(*member, std::move(message));
  output_->Close(connection, why);
  Lose(connection, why, now);
}

void Group::Lose(ConnectionId connection, const absl::Status& why, absl::Time now) {
  const auto it = members_.find(connection);
  if (it == members_.end()) return;
  const Member member = std::move(it->second);
  members_.erase(it);
  if (member.phase == Member::Phase::kConnected) return;  // never was one of us
  const absl::Status named =
      absl::UnavailableError(absl::StrCat(Describe(member), ": ", why.message()));
  LogWarning(
      "fleet: event=worker_lost rank={} pid={} host={} term={} epoch={} phase={} step={} op={} "
      "cause=\"{}\"",
      member.has_rank() ? absl::StrCat(*member.rank) : "none", member.registration.pid(),
      absl::CHexEscape(member.registration.host()), term_, epoch_, Name(member.phase), member.step,
      member.op, std::string(why.message()));
  if (!member.has_rank()) return;
  if (state_ == State::kEnding) {
    FinishEnding(now);
    return;
  }
  EndEpoch(named, now);
}

void Group::BackOff(absl::Time now) {
  failed_attempts_ = std::min(failed_attempts_ + 1, 16u);
  not_before_ =
      now + std::min(kMaxRetryDelay, options_.retry_delay * (int64_t{1} << (failed_attempts_ - 1)));
}

void Group::EndEpoch(const absl::Status& why, absl::Time now) {
  if (state_ == State::kWaiting || state_ == State::kEnding) return;
  last_loss_ = std::string(why.message());
  blame_deadline_.reset();
  outstanding_.clear();
  LogWarning("fleet: event=group_lost term={} epoch={} state={} cause=\"{}\"", term_, epoch_,
             Name(state_), std::string(why.message()));
  const bool had_epoch = state_ != State::kLoading;
  if (!ready_announced_) BackOff(now);
  if (std::exchange(ready_announced_, false)) {
    if (last_step_ < 16) BackOff(now);  // it broke at once
    output_->OnGroupLost(term_, epoch_, why);
  }
  if (!had_epoch) {
    // Nobody has to come to rest: who loads may go on, for the next attempt asks it for the same.
    state_ = State::kWaiting;
    state_since_ = now;
    TryForm(now);
    return;
  }
  state_ = State::kEnding;
  state_since_ = now;
  internal::CoordinatorMessage message;
  message.mutable_end_epoch()->set_term(term_);
  message.mutable_end_epoch()->set_epoch(epoch_);
  for (auto& [connection, member] : members_) {
    if (!member.has_rank()) continue;
    member.phase = Member::Phase::kQuiescing;
    member.phase_since = now;
  }
  SendToRanks(std::move(message));
  FinishEnding(now);
}

void Group::FinishEnding(absl::Time now) {
  for (const auto& [connection, member] : members_) {
    if (member.phase == Member::Phase::kQuiescing) return;
  }
  state_ = State::kWaiting;
  state_since_ = now;
  LogInfo("fleet: event=group_at_rest term={} epoch={} ranks_left={}", term_, epoch_,
          RankConnections().size());
  TryForm(now);
}

void Group::OnQuiesced(Member& member, const internal::Quiesced& quiesced, absl::Time now) {
  if (state_ != State::kEnding || member.phase != Member::Phase::kQuiescing ||
      quiesced.epoch() != epoch_)
    return;
  member.phase = Member::Phase::kRegistered;
  member.phase_since = now;
  if (!quiesced.weights_intact()) member.registration.clear_plan_digest();
  LogInfo("fleet: event=rank_quiesced rank={} epoch={} weights_intact={}", *member.rank, epoch_,
          quiesced.weights_intact());
  FinishEnding(now);
}

void Group::DeclareHopeless(const absl::Status& why) {
  if (std::exchange(hopeless_, true)) return;
  output_->OnHopeless(why);
}

void Group::OnFailure(Member& member, const internal::Failure& failure, absl::Time now) {
  const ConnectionId connection = member.connection;
  const absl::StatusCode code = CodeOf(failure.code());
  const std::string text = Short(failure.message());
  LogWarning("fleet: event=worker_failure rank={} pid={} epoch={} code={} fatal={} message=\"{}\"",
             member.has_rank() ? absl::StrCat(*member.rank) : "none", member.registration.pid(),
             failure.epoch(), absl::StatusCodeToString(code), failure.fatal(), text);
  const absl::Status status(code, text);
  if (failure.epoch() == 0 && member.phase == Member::Phase::kLoading) {
    const std::string who = Describe(member);
    const bool hopeless = IsHopeless(code, was_ready_);
    Drop(connection, status, /*exit=*/hopeless, now);
    if (hopeless) {
      DeclareHopeless(
          absl::Status(code, absl::StrCat(who, " cannot load its part of the model: ", text)));
    }
    return;
  }
  if (failure.fatal()) {
    Drop(connection, status, /*exit=*/false, now);
    return;
  }
  if (failure.epoch() != epoch_ || state_ == State::kEnding || state_ == State::kWaiting ||
      !member.has_rank())
    return;
  const absl::Status named = absl::UnavailableError(
      absl::StrCat(Describe(member), ": ", absl::StatusCodeToString(code), ": ", text));
  if (!IsSymptom(code)) {
    const std::string who = Describe(member);
    EndEpoch(named, now);
    if (!was_ready_ && CannotBeDone(code)) {
      DeclareHopeless(absl::Status(code, absl::StrCat(who, " cannot join the others: ", text)));
    }
    return;
  }
  if (!blame_deadline_) {
    blame_deadline_ = now + options_.blame_grace;
    blame_status_ = named;
  }
}

void Group::Unexpected(Member& member, const std::string& what, absl::Time now) {
  Drop(member.connection, absl::FailedPreconditionError(absl::StrCat("protocol error: ", what)),
       /*exit=*/false, now);
}

void Group::CheckSilence(absl::Time now) {
  std::vector<std::pair<ConnectionId, absl::Status>> lost;
  // NCCL's abort may wait 2 s for a call of its own, and then for the device.
  const absl::Duration quiesce_timeout = options_.quiesce_timeout * (OnGpus() ? 3 : 1);
  for (const auto& [connection, member] : members_) {
    if (member.phase == Member::Phase::kConnected) {
      if (now - member.phase_since > options_.register_timeout) {
        lost.emplace_back(connection,
                          absl::DeadlineExceededError("connected, but did not register"));
      }
    } else if (now - member.last_heard > options_.silence_timeout) {
      lost.emplace_back(
          connection,
          absl::DeadlineExceededError(absl::StrCat(
              "silent for ",
              absl::FormatDuration(absl::Trunc(now - member.last_heard, absl::Milliseconds(100))),
              ": its process hangs or is stopped, or the network is cut")));
    } else if (member.phase == Member::Phase::kQuiescing &&
               now - member.phase_since > quiesce_timeout) {
      lost.emplace_back(connection, absl::DeadlineExceededError(
                                        "did not come to rest after the end of the epoch"));
    }
  }
  for (const auto& [connection, why] : lost) Drop(connection, why, /*exit=*/false, now);
}

void Group::CheckPartial(absl::Time now) {
  const uint32_t registered = Registered();
  if (state_ != State::kWaiting || registered == 0 || registered >= options_.world) {
    partial_deadline_.reset();
    return;
  }
  if (!partial_deadline_) {
    const double extra = std::uniform_real_distribution<double>(0, 1)(random_);
    partial_deadline_ = now + options_.partial_timeout * (1 + extra);
  }
  if (now < *partial_deadline_) return;
  partial_deadline_.reset();
  LogWarning("fleet: event=partial_group_released registered={} world={}", registered,
             options_.world);
  const absl::Status why = absl::UnavailableError(
      absl::StrCat("only ", registered, " of ", options_.world,
                   " workers came; let go in case another coordinator waits for this one"));
  std::vector<ConnectionId> held;
  for (const auto& [connection, member] : members_) {
    if (member.phase != Member::Phase::kConnected) held.push_back(connection);
  }
  for (const ConnectionId connection : held) Drop(connection, why, /*exit=*/false, now);
}

void Group::CheckPhaseTimeouts(absl::Time now) {
  if (state_ == State::kLoading) {
    std::optional<ConnectionId> late;
    for (const auto& [connection, member] : members_) {
      if (member.phase == Member::Phase::kLoading &&
          now - member.progress_at > options_.load_timeout)
        late = connection;
    }
    if (late) {
      Drop(*late,
           absl::DeadlineExceededError(absl::StrCat("no progress in loading for ",
                                                    absl::FormatDuration(options_.load_timeout))),
           /*exit=*/false, now);
    }
    return;
  }
  const absl::Duration limit = state_ == State::kJoining      ? options_.join_timeout
                               : state_ == State::kAllocating ? options_.allocate_timeout
                                                              : absl::InfiniteDuration();
  if (now - state_since_ <= limit) return;
  const Member::Phase late_phase =
      state_ == State::kJoining ? Member::Phase::kJoining : Member::Phase::kAllocating;
  std::vector<std::string> late;
  for (const auto& [connection, member] : members_) {
    if (member.phase == late_phase) late.push_back(Describe(member));
  }
  EndEpoch(absl::DeadlineExceededError(absl::StrCat("in phase ", Name(state_), " longer than ",
                                                    absl::FormatDuration(limit),
                                                    ", missing: ", absl::StrJoin(late, ", "))),
           now);
}

void Group::CheckStall(absl::Time now) {
  if (state_ != State::kReady || outstanding_.empty()) return;
  absl::Time moved = outstanding_.front().submitted;
  for (const auto& [connection, member] : members_) {
    if (member.has_rank()) moved = std::max(moved, member.moved_at);
  }
  if (now - moved <= options_.stall_timeout) return;
  const auto place = [](const Member& member) {
    return std::tuple(member.acked_step, member.step, member.op);
  };
  const Member* last = nullptr;
  bool all_equal = true;
  for (const auto& [connection, member] : members_) {
    if (!member.has_rank()) continue;
    if (last != nullptr && place(member) != place(*last)) all_equal = false;
    if (last == nullptr || place(member) < place(*last)) last = &member;
  }
  const std::string since = absl::FormatDuration(absl::Trunc(now - moved, absl::Milliseconds(100)));
  std::string why;
  if (all_equal && options_.world > 1) {
    why = absl::StrCat("no rank made progress for ", since, ", all wait in step ", last->step,
                       " op ", last->op, ": the link between them is at fault");
  } else {
    why = absl::StrCat(Describe(*last), ": no progress for ", since, " in step ", last->step,
                       " op ", last->op);
  }
  EndEpoch(absl::UnavailableError(why), now);
}

}  // namespace bitshard
