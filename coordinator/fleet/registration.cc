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
#include "kernels/base/log.h"

namespace bitshard {
namespace {

constexpr size_t kMaxNameBytes = 256;  // of the strings that a worker says about itself
constexpr int kMaxCollectives = 16;

// Time depends on the lengths only, so that a peer cannot guess a token byte by byte.
bool EqualInConstantTime(const std::string& a, const std::string& b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^
                  static_cast<unsigned char>(b.empty() ? 0 : b[i % b.size()]);
  }
  return difference == 0;
}

// The name of a node's kind, as workers list them: "rms_norm".
std::string KindOf(const internal::Node& node) {
  const google::protobuf::OneofDescriptor* oneof =
      internal::Node::descriptor()->FindOneofByName("op");
  const google::protobuf::FieldDescriptor* field =
      node.GetReflection()->GetOneofFieldDescriptor(node, oneof);
  return field == nullptr ? "" : field->name();
}

std::string Short(const std::string& text) { return absl::CHexEscape(text.substr(0, 64)); }

}  // namespace

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
  if (!EqualInConstantTime(registration.token(), options_.token)) {
    return absl::PermissionDeniedError(
        "wrong token; give coordinator and workers the same --token-file");
  }
  if (registration.instance().empty() || registration.instance().size() > kMaxNameBytes ||
      registration.host().size() > kMaxNameBytes || registration.build().size() > kMaxNameBytes ||
      registration.numerics_digest().size() > kMaxNameBytes ||
      registration.device().size() > kMaxNameBytes || registration.isa().size() > kMaxNameBytes ||
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
  for (const auto& [connection, other] : members_) {
    if (other.phase == Member::Phase::kConnected) continue;
    if (other.registration.instance() == registration.instance())
      continue;  // its own former stream
    if (options_.require_equal_numerics &&
        other.registration.numerics_digest() != registration.numerics_digest()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "its numerics digest is ", Short(registration.numerics_digest()), ", that of pid ",
          other.registration.pid(), " on ", Short(other.registration.host()), " is ",
          Short(other.registration.numerics_digest()),
          ": the two would not compute the same bits"));
    }
    // What every two have in common, all have: there are but shm, on one host, and gloo.
    if (ChooseCollective({&other.registration, &registration}).empty()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "it runs on host ", Short(registration.host()), " with the collectives \"",
          Short(absl::StrJoin(registration.collectives(), ",")), "\", pid ",
          other.registration.pid(), " on host ", Short(other.registration.host()), " with \"",
          Short(absl::StrJoin(other.registration.collectives(), ",")),
          "\": they have none in common (shm needs one host); start both with --collective=auto"));
    }
  }
  return absl::OkStatus();
}

void Group::Register(Member& member, const internal::Register& registration, absl::Time now) {
  const ConnectionId connection = member.connection;
  if (member.phase != Member::Phase::kConnected) {
    Unexpected(member, "a second Register", now);
    return;
  }
  const absl::Status acceptable = Acceptable(registration);
  if (!acceptable.ok()) {
    LogWarning("fleet: event=worker_refused pid={} host={} cause=\"{}\"", registration.pid(),
               Short(registration.host()), std::string(acceptable.message()));
    Drop(connection, acceptable, /*exit=*/true, now);
    return;
  }
  // A process holds one stream and dials again only when the old one has ended for it: so it has,
  // for us too.
  std::vector<ConnectionId> former;
  for (const auto& [other_connection, other] : members_) {
    if (other_connection != connection && other.phase != Member::Phase::kConnected &&
        other.registration.instance() == registration.instance()) {
      former.push_back(other_connection);
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
