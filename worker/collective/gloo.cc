// Joining a group: every rank listens, once for each other rank, the addresses go round, and each
// two connect.
#include "worker/collective/gloo.h"

#include <memory>
#include <signal.h>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

#include "kernels/base/status_macros.h"
#include "worker/collective/gloo_collective.h"
#include "worker/collective/gloo_exchange.h"
#include "worker/collective/gloo_link.h"

namespace bitshard {
namespace {

// FNV-1a.
uint64_t TagOf(const std::string& id) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : id) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  return hash;
}

void IgnoreBrokenPipes() {
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_DFL)
    signal(SIGPIPE, SIG_IGN);
}

absl::Status Named(const GlooGroup& group, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("gloo: communicator ", group.id, ", rank ",
                                                  group.rank, ": ", status.message()));
}

absl::Status Missing(const GlooGroup& group, const std::vector<int>& ranks,
                     absl::Duration timeout) {
  return absl::UnavailableError(absl::StrCat(
      "gloo: communicator ", group.id, ": rank", ranks.size() == 1 ? " " : "s ",
      absl::StrJoin(ranks, ", "), " of ", group.world, " did not come within ",
      absl::FormatDuration(timeout), " (rank ", group.rank, " waited at ", group.address,
      "); are those workers alive, and may these hosts open TCP connections to any port of each "
      "other?"));
}

// What rank `from` told for the link to rank `to`; links in order of rank.
std::string AddressFor(const std::string& told, int to) {
  return told.substr(to * GlooAddressBytes(), GlooAddressBytes());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> JoinGlooCollective(const GlooGroup& group,
                                                               absl::Duration timeout,
                                                               const std::atomic<bool>* stop) {
  const int rank = group.rank, world = group.world;
  if (world < 1 || world > kGlooMaxWorld || rank < 0 || rank >= world) {
    return absl::InvalidArgumentError(absl::StrCat("gloo: rank ", rank, " of ", world,
                                                   ": a group has 1..", kGlooMaxWorld,
                                                   " ranks, counted from 0"));
  }
  if (world == 1) return MakeSoloCollective();
  IgnoreBrokenPipes();
  const absl::Time deadline = absl::Now() + timeout;

  ASSIGN_OR_RETURN(auto device, OpenGlooDevice(group.address));
  std::vector<std::unique_ptr<GlooLink>> links(world);
  std::string mine;
  for (int r = 0; r < world; ++r) {
    if (r == rank) {
      mine.append(GlooAddressBytes(), '\0');
      continue;
    }
    auto link = GlooLink::Open(device, /*first=*/rank < r);
    if (!link.ok()) return Named(group, link.status());
    mine += (*link)->address();
    links[r] = *std::move(link);
  }

  const absl::StatusOr<std::vector<std::string>> told = group.tell(mine);
  if (!told.ok()) return Named(group, told.status());
  std::vector<std::string> addresses(world);
  for (int r = 0; r < world; ++r) {
    if (told->size() != static_cast<size_t>(world) ||
        (*told)[r].size() != world * GlooAddressBytes()) {
      return Named(group,
                   absl::InternalError("the addresses that went round are not of one group"));
    }
    addresses[r] = AddressFor((*told)[r], rank);
  }

  auto exchange = std::make_unique<GlooExchange>(rank, std::move(links), TagOf(group.id));
  const absl::Status connected = exchange->Connect(addresses, deadline, stop);
  if (absl::IsDeadlineExceeded(connected)) return Missing(group, exchange->Missing(), timeout);
  if (!connected.ok()) return Named(group, connected);
  return std::make_unique<GlooCollective>(std::move(exchange));
}

}  // namespace bitshard
