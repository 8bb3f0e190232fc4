#include "worker/collective/shm_exchange.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <sched.h>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/thread_pool.h"
#include "worker/collective/collective.h"
#include "worker/collective/shm_futex.h"

namespace bitshard {
namespace {

// Sleeping and waking costs some 5 to 50 us. Ranks that compute equal shares arrive within less,
// but heads do not always divide: one rank of two with 2 of 3 KV heads is some 20 us late in every
// layer, and a peer that has gone to sleep by then is late itself. With fewer CPUs than ranks the
// awaited rank may need this very CPU: spin only about as long as asking the kernel would take.
constexpr int64_t kSpinNs = 50'000;
constexpr int64_t kSpinCrowdedNs = 300;
constexpr long kRecheckNs = 20'000'000;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// CPUs of the whole group: the ranks' affinities together, but no more than our cgroup grants.
int64_t SpinNs(const ShmView& view) {
  int cpus = 0;
  for (int word = 0; word < 16; ++word) {
    uint64_t all = 0;
    for (int r = 0; r < view.world(); ++r)
      all |= view.line(r).cpus[word].load(std::memory_order_relaxed);
    cpus += std::popcount(all);
  }
  const int available = AvailableCpus();
  if (available < static_cast<int>(AffinityCpus().size())) cpus = std::min(cpus, available);
  return cpus >= view.world() ? kSpinNs : kSpinCrowdedNs;
}

}  // namespace

ShmExchange::ShmExchange(ShmView view, int rank, std::function<bool(int)> alive)
    : view_(view), rank_(rank), alive_(std::move(alive)), spin_ns_(SpinNs(view)) {}

void ShmExchange::End(ShmEnd why, int who) {
  uint32_t none = 0;
  view_.header().end.compare_exchange_strong(
      none, static_cast<uint32_t>(why) << 16 | static_cast<uint32_t>(who),
      std::memory_order_seq_cst);
  // Not only those who wait for `who`: everyone must look up.
  for (int r = 0; r < world(); ++r) FutexWakeAll(view_.line(r).phase);
  FutexWakeAll(view_.header().ready);
  FutexWakeAll(view_.header().joined);
}

absl::Status ShmExchange::EndStatus() const {
  const uint32_t end = view_.header().end.load(std::memory_order_acquire);
  const uint32_t who = end & 0xffff;
  const auto pid = [&]() -> std::string {
    if (who >= static_cast<uint32_t>(world())) return "";
    return absl::StrCat(" (pid ",
                        view_.line(static_cast<int>(who)).pid.load(std::memory_order_relaxed), ")");
  };
  switch (static_cast<ShmEnd>(end >> 16)) {
    case ShmEnd::kNone:
      return absl::OkStatus();
    case ShmEnd::kAborted:
      return CollectiveAbort(static_cast<int>(who));
    case ShmEnd::kDied:
      return absl::UnavailableError(absl::StrCat("collective: rank ", who, pid(), " has died"));
    case ShmEnd::kLeft:
      return absl::UnavailableError(
          absl::StrCat("collective: rank ", who, pid(), " has left the group"));
    case ShmEnd::kJoinFailed:
      break;
  }
  return absl::UnavailableError(absl::StrCat("collective: the group has ended (code ", end, ")"));
}

absl::Status ShmExchange::Begin() {
  RETURN_IF_ERROR(failure_);
  failure_ = EndStatus();
  ++sequence_;
  return failure_;
}

absl::Status ShmExchange::Meet(const Operation& op) {
  RETURN_IF_ERROR(failure_);
  ShmRankLine& mine = view_.line(rank_);
  ++phase_;
  ShmRankLine::Posted& posted = mine.posted[phase_ & 1];
  posted.sequence.store(sequence_, std::memory_order_relaxed);
  posted.op.store(PackOperation(op), std::memory_order_relaxed);
  // The phase is sequentially consistent with the sleepers' count: either we see the sleeper, or it
  // sees the new phase.
  mine.cpu.store(static_cast<uint32_t>(sched_getcpu()), std::memory_order_relaxed);
  mine.phase.store(phase_, std::memory_order_seq_cst);
  if (mine.sleepers.load(std::memory_order_seq_cst) != 0) FutexWakeAll(mine.phase);

  for (int r = 0; r < world() && failure_.ok(); ++r) {
    if (r != rank_) failure_ = WaitFor(r);
  }
  if (failure_.ok()) failure_ = Compare();
  return failure_;
}

absl::Status ShmExchange::WaitFor(int peer) {
  ShmRankLine& line = view_.line(peer);
  const auto arrived = [&](uint32_t phase) { return static_cast<int32_t>(phase - phase_) >= 0; };
  if (arrived(line.phase.load(std::memory_order_acquire))) return absl::OkStatus();

  // A rank that was last seen on this very CPU cannot run while we spin.
  const bool here =
      line.cpu.load(std::memory_order_relaxed) == static_cast<uint32_t>(sched_getcpu());
  const int64_t spin_until = NowNs() + (here ? 0 : spin_ns_);
  do {
    for (int i = 0; i < 8; ++i) {
      if (arrived(line.phase.load(std::memory_order_acquire))) return absl::OkStatus();
      CpuRelax();
    }
  } while (NowNs() < spin_until);

  line.sleepers.fetch_add(1, std::memory_order_seq_cst);
  absl::Status status;
  for (int64_t next_check = NowNs() + kRecheckNs;;) {
    const uint32_t seen = line.phase.load(std::memory_order_seq_cst);
    if (arrived(seen)) break;
    status = EndStatus();
    if (!status.ok()) break;
    if (NowNs() >= next_check) {
      // A rank may arrive and then go: what it left behind is complete, so look for its phase once
      // more.
      if (!alive_(peer) && !arrived(line.phase.load(std::memory_order_acquire))) {
        End(ShmEnd::kDied, peer);
        status = EndStatus();
        break;
      }
      next_check = NowNs() + kRecheckNs;
    }
    FutexWait(line.phase, seen, kRecheckNs);
  }
  line.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return status;
}

absl::Status ShmExchange::Compare() const {
  const uint32_t parity = phase_ & 1;
  const auto posted = [&](int r) {
    const ShmRankLine::Posted& p = view_.line(r).posted[parity];
    return ToldOperation{p.sequence.load(std::memory_order_relaxed),
                         p.op.load(std::memory_order_relaxed)};
  };
  // Everyone compares everyone with rank 0, so all ranks come to the same verdict.
  const ToldOperation first = posted(0);
  for (int r = 1; r < world(); ++r) {
    if (const ToldOperation other = posted(r); other != first)
      return RanksDisagree(first, r, other);
  }
  return absl::OkStatus();
}

}  // namespace bitshard
