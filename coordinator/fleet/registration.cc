// How a worker is let into the group: what it must be, what it must know, and what it must have in
// common with the rest.

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "coordinator/fleet/collective_choice.h"
#include "coordinator/fleet/group.h"
#include "coordinator/fleet/token.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr size_t kMaxNameBytes = 256;  // of the strings that a worker says about itself
constexpr int kMaxCollectives = 16;

// The name of a node's kind, as workers list them: "rms_norm".
std::string KindOf(const internal::Node& node) {
  const google::protobuf::OneofDescriptor* oneof =
      internal::Node::descriptor()->FindOneofByName("op");
  const google::protobuf::FieldDescriptor* field =
      node.GetReflection()->GetOneofFieldDescriptor(node, oneof);
  return field == nullptr ? "" : field->name();
}

std::string Short(const std::string& text) { return absl::CHexEscape(text.substr(0, 64)); }

// "cpu" or "cuda".
std::string DeviceKind(const internal::Register& worker) {
  return worker.device().substr(0, worker.device().find(':'));
}

bool OnOneDevice(const internal::Register& mine, const internal::Register& other) {
  return !mine.device_id().empty() && mine.device_id() == other.device_id() &&
         mine.host() == other.host();
}

absl::Status DeviceTaken(const internal::Register& mine, const internal::Register& other) {
  return absl::FailedPreconditionError(
      absl::StrCat("its device ", Short(mine.device_id()), " of host ", Short(mine.host()),
                   " is that of pid ", other.pid(),
                   " already, and NCCL takes no two ranks on one GPU; give each worker its own "
                   "(--device=cuda:INDEX, or CUDA_VISIBLE_DEVICES), or use fewer workers"));
}

absl::Status OtherDevice(const internal::Register& mine, const internal::Register& other) {
  return absl::FailedPreconditionError(absl::StrCat(
      "it computes on ", Short(mine.device()), ", pid ", other.pid(), " on host ",
      Short(other.host()), " on ", Short(other.device()),
      ": they share neither a collective nor the same bits; start all workers of the group with "
      "the same --device"));
}

absl::Status OtherNumerics(const internal::Register& mine, const internal::Register& other) {
  return absl::FailedPreconditionError(absl::StrCat(
      "its numerics digest is ", Short(mine.numerics_digest()), ", that of pid ", other.pid(),
      " on ", Short(other.host()), " is ", Short(other.numerics_digest()),
      ": the two would not compute the same bits",
      DeviceKind(mine) == "cpu" ? ""
                                : " (GPUs of two kinds go together with --deterministic=false)"));
}

absl::Status NothingInCommon(const internal::Register& mine, const internal::Register& other) {
  return absl::FailedPreconditionError(absl::StrCat(
      "it runs on host ", Short(mine.host()), " with the collectives \"",
      Short(absl::StrJoin(mine.collectives(), ",")), "\", pid ", other.pid(), " on host ",
      Short(other.host()), " with \"", Short(absl::StrJoin(other.collectives(), ",")),
      "\": they have none in common",
      // On GPUs the build says which there are, and --collective nothing.
      DeviceKind(mine) == "cpu" ? " (shm needs one host); start both with --collective=auto"
                                : "; use one build for both, made with --config=cuda"));
}

}  // namespace

bool Group::OnGpus() const {
  return std::any_of(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.second.has_rank() && DeviceKind(entry.second.registration) != "cpu";
  });
}

void Group::Connected(ConnectionId connection, absl::Time now) {
  const auto unregistered = std::count_if(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.second.phase == Member::Phase::kConnected;
  });
  Member& member = members_[connection];
  member.connection = connection;
  member.phase_since = member.last_heard = member.progress_at = member.moved_at = now;
  if (unregistered >= options_.max_unregistered) {
    Drop(connection, absl::ResourceExhaustedError("too many connections that have not registered"),
         /*exit=*/false, now);
  }
}

absl::Status Group::Acceptable(const internal::Register& registration) const {
  RETURN_IF_ERROR(CheckToken(registration.token(), options_.token));
  if (registration.instance().empty() || registration.instance().size() > kMaxNameBytes ||
      registration.host().size() > kMaxNameBytes || registration.build().size() > kMaxNameBytes ||
      registration.numerics_digest().size() > kMaxNameBytes ||
      registration.device().size() > kMaxNameBytes || registration.isa().size() > kMaxNameBytes ||
      registration.device_id().size() > kMaxNameBytes ||
      registration.plan_digest().size() > kMaxNameBytes ||
      registration.collectives_size() > kMaxCollectives) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the registration has no instance, or a name of more than ", kMaxNameBytes, " bytes"));
  }
  if (registration.protocol_min() > kFleetProtocol ||
      registration.protocol_max() < kFleetProtocol) {
    return absl::FailedPreconditionError(absl::StrCat(
        "it speaks fleet protocols ", registration.protocol_min(), " to ",
        registration.protocol_max(), ", we speak ", kFleetProtocol, "; use binaries of one build"));
  }
  if (registration.build() != options_.build) {
    return absl::FailedPreconditionError(absl::StrCat("its build is ", Short(registration.build()),
                                                      ", ours is ", options_.build,
                                                      "; versions are never mixed inside a group"));
  }
  std::vector<const internal::Register*> together = {&registration};
  for (const auto& [connection, other] : members_) {
    if (other.phase == Member::Phase::kConnected) continue;
    if (other.registration.instance() == registration.instance())
      continue;  // its own former stream
    if (DeviceKind(registration) != DeviceKind(other.registration))
      return OtherDevice(registration, other.registration);
    if (options_.require_equal_numerics &&
        other.registration.numerics_digest() != registration.numerics_digest()) {
      const absl::Status differ = OtherNumerics(registration, other.registration);
      if (!options_.numerics.nondeterministic() || DeviceKind(registration) == "cpu") return differ;
      LogWarning("fleet: event=other_numerics pid={} host={}: {}", registration.pid(),
                 registration.host(), std::string(differ.message()));
    }
    together.push_back(&other.registration);
    if (ChooseCollective(together).empty())
      return NothingInCommon(registration, other.registration);
  }
  return absl::OkStatus();
}

void Group::Register(Member& member, const internal::Register& registration, absl::Time now) {
  const ConnectionId connection = member.connection;
  if (member.phase != Member::Phase::kConnected) {
    Unexpected(member, "a second Register", now);
    return;
  }
  const auto refuse = [&](const absl::Status& why, bool exit) {
    LogWarning("fleet: event=worker_refused pid={} host={} cause=\"{}\"", registration.pid(),
               Short(registration.host()), std::string(why.message()));
    Drop(connection, why, exit, now);
  };
  if (const absl::Status acceptable = Acceptable(registration); !acceptable.ok()) {
    refuse(acceptable, /*exit=*/true);
    return;
  }
  // A process holds one stream and dials again only when the old one has ended for it: so it has,
  // for us too.
  std::vector<ConnectionId> former;
  for (const auto& [other_connection, other] : members_) {
    if (other_connection == connection || other.phase == Member::Phase::kConnected) continue;
    if (other.registration.instance() == registration.instance()) {
      former.push_back(other_connection);
    } else if (OnOneDevice(registration, other.registration)) {
      // Who has missed a heartbeat may be its predecessor, whose end did not reach us: it dials
      // again until that is sure. No process starts between two heartbeats.
      const bool alive = now - other.last_heard <= options_.heartbeat_interval * 1.5;
      refuse(DeviceTaken(registration, other.registration), /*exit=*/alive);
      return;
    }
  }
  member.registration = registration;
  member.registration.clear_token();
  member.phase = Member::Phase::kRegistered;
  member.phase_since = now;
  LogInfo(
      "fleet: event=worker_registered pid={} host={} device={} isa={} local_rank={} term={} "
      "holds_weights={}",
      registration.pid(), Short(registration.host()), Short(registration.device()),
      Short(registration.isa()), registration.local_rank(), registration.term(),
      !registration.plan_digest().empty());
  for (const ConnectionId old : former) {
    Drop(old, absl::UnavailableError("its process dialled again"), /*exit=*/false, now);
  }
  TryForm(now);
}

bool Group::CheckOps(absl::Time now) {
  std::set<std::string> needed;
  for (const internal::RankPlan& plan : plans_) {
    for (const internal::Node& node : plan.graph().nodes()) needed.insert(KindOf(node));
  }
  std::vector<std::pair<ConnectionId, std::string>> unfit;
  for (const auto& [connection, member] : members_) {
    if (member.phase == Member::Phase::kConnected) continue;
    const std::set<std::string> known(member.registration.ops().begin(),
                                      member.registration.ops().end());
    std::vector<std::string> missing;
    std::set_difference(needed.begin(), needed.end(), known.begin(), known.end(),
                        std::back_inserter(missing));
    if (!missing.empty()) unfit.emplace_back(connection, absl::StrJoin(missing, ", "));
  }
  for (const auto& [connection, missing] : unfit) {
    Drop(connection,
         absl::UnimplementedError(absl::StrCat("it cannot run these ops of the model: ", missing)),
         /*exit=*/true, now);
  }
  return unfit.empty();
}

}  // namespace bitshard
