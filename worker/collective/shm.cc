// Joining a group: rank 0 makes the segment, the others find it; when all are there its name goes
// away.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "kernels/base/status_macros.h"
#include "worker/collective/collective.h"
#include "worker/collective/shm_collective.h"
#include "worker/collective/shm_futex.h"
#include "worker/collective/shm_segment.h"

namespace bitshard {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(2);
constexpr long kRecheckNs = 20'000'000;

struct Ticket {
  const std::string& id;
  const int rank;
  const int world;
  const absl::Time deadline;
  const absl::Duration timeout;
  const std::atomic<bool>* stop;  // may be null
};

bool Stopped(const Ticket& ticket) {
  return ticket.stop != nullptr && ticket.stop->load(std::memory_order_relaxed);
}

bool Over(const Ticket& ticket) { return Stopped(ticket) || absl::Now() >= ticket.deadline; }

absl::Status Missing(const Ticket& ticket, const std::vector<int>& ranks) {
  if (Stopped(ticket)) {
    return absl::CancelledError(
        absl::StrCat("shm: joining communicator ", ticket.id, " was called off"));
  }
  return absl::UnavailableError(absl::StrCat(
      "shm: communicator ", ticket.id, ": rank", ranks.size() == 1 ? " " : "s ",
      absl::StrJoin(ranks, ", "), " of ", ticket.world, " did not come within ",
      absl::FormatDuration(ticket.timeout), " (rank ", ticket.rank,
      " waited); are those workers alive, on this host, and do they share our /dev/shm?"));
}

std::vector<int> NotJoined(const ShmView& view) {
  std::vector<int> missing;
  for (int r = 0; r < view.world(); ++r) {
    if (view.line(r).joined.load(std::memory_order_acquire) == 0) missing.push_back(r);
  }
  return missing;
}

// Those that never came or, when all have, those that died since. In this order: who gave up just
// before us is not to blame while somebody never came.
std::vector<int> Absent(const ShmSegment& segment) {
  std::vector<int> absent = NotJoined(segment.view());
  if (!absent.empty()) return absent;
  for (int r = 0; r < segment.view().world(); ++r) {
    if (!segment.Alive(r)) absent.push_back(r);
  }
  return absent;
}

// Sleeps until `word` differs from `seen`, a coarse while has passed or the deadline is there.
void Doze(std::atomic<uint32_t>& word, uint32_t seen, absl::Time deadline) {
  const int64_t left_ns = absl::ToInt64Nanoseconds(deadline - absl::Now());
  if (left_ns > 0) FutexWait(word, seen, static_cast<long>(std::min<int64_t>(left_ns, kRecheckNs)));
}

void Join(ShmSegment& segment, int rank) {
  segment.view().line(rank).joined.store(1, std::memory_order_release);
  segment.view().header().joined.fetch_add(1, std::memory_order_seq_cst);
  FutexWakeAll(segment.view().header().joined);
}

std::unique_ptr<Collective> Make(std::unique_ptr<ShmSegment> segment, int rank) {
  const ShmSegment* watched = segment.get();
  const ShmView view = segment->view();
  return std::make_unique<ShmCollective>(std::move(segment), view, rank,
                                         [watched](int r) { return watched->Alive(r); });
}

absl::StatusOr<std::unique_ptr<Collective>> JoinAsFirst(const Ticket& ticket) {
  ASSIGN_OR_RETURN(std::unique_ptr<ShmSegment> segment,
                   ShmSegment::Create(ticket.id, ticket.world));
  ShmHeader& header = segment->view().header();
  Join(*segment, 0);
  for (;;) {
    // Arrivals; a rank that died and was started again is more than one of them.
    const uint32_t joined = header.joined.load(std::memory_order_seq_cst);
    const std::vector<int> absent = Absent(*segment);
    if (absent.empty()) break;
    if (Over(ticket)) {
      // So that the others name the same ranks.
      for (int r : absent) segment->view().line(r).joined.store(0, std::memory_order_release);
      header.end.store(static_cast<uint32_t>(ShmEnd::kJoinFailed) << 16, std::memory_order_seq_cst);
      FutexWakeAll(header.ready);
      segment->Unlink();
      return Missing(ticket, absent);
    }
    Doze(header.joined, joined, ticket.deadline);
  }
  segment->Unlink();
  header.ready.store(1, std::memory_order_seq_cst);
  FutexWakeAll(header.ready);
  return Make(std::move(segment), 0);
}

absl::StatusOr<std::unique_ptr<Collective>> JoinAsOther(const Ticket& ticket) {
  // One round for each segment of that name: one whose rank 0 died before all were there is given
  // up for the next.
  for (absl::Status last = absl::OkStatus();;) {
    auto attached = ShmSegment::Attach(ticket.id, ticket.rank, ticket.world);
    if (!attached.ok()) {
      // Not there yet; or our own predecessor, killed, has not quite gone. Everything else will not
      // get better.
      const bool may_change =
          absl::IsNotFound(attached.status()) || absl::IsAlreadyExists(attached.status());
      if (!may_change) return attached.status();
      last = attached.status();
      if (Over(ticket)) {
        if (absl::IsAlreadyExists(last)) return last;
        return Missing(ticket, {0});
      }
      absl::SleepFor(kPoll);
      continue;
    }
    std::unique_ptr<ShmSegment> segment = *std::move(attached);
    ShmHeader& header = segment->view().header();
    Join(*segment, ticket.rank);
    while (header.ready.load(std::memory_order_seq_cst) == 0) {
      if (header.end.load(std::memory_order_seq_cst) != 0)
        return Missing(ticket, NotJoined(segment->view()));
      if (!segment->Alive(0)) break;
      if (Over(ticket)) return Missing(ticket, Absent(*segment));
      Doze(header.ready, 0, ticket.deadline);
    }
    if (header.ready.load(std::memory_order_seq_cst) != 0)
      return Make(std::move(segment), ticket.rank);
    if (Over(ticket)) {
      segment->Unlink();  // its owner cannot any more
      return Missing(ticket, {0});
    }
    absl::SleepFor(kPoll);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> JoinShmCollective(const std::string& id, int rank,
                                                              int world, absl::Duration timeout,
                                                              const std::atomic<bool>* stop) {
  RETURN_IF_ERROR(ShmSegment::CheckId(id));
  if (world < 1 || world > kShmMaxWorld || rank < 0 || rank >= world) {
    return absl::InvalidArgumentError(absl::StrCat("shm: rank ", rank, " of ", world,
                                                   ": a group has 1..", kShmMaxWorld,
                                                   " ranks, counted from 0"));
  }
  if (world == 1) return MakeSoloCollective();
  const Ticket ticket{id, rank, world, absl::Now() + timeout, timeout, stop};
  return rank == 0 ? JoinAsFirst(ticket) : JoinAsOther(ticket);
}

}  // namespace bitshard
