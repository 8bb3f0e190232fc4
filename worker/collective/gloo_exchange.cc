#include "worker/collective/gloo_exchange.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "worker/collective/collective.h"

namespace bitshard {
namespace {

constexpr uint64_t kMagic = 0x31304f4f4c475342;  // "BSGLOO01"; changes with the messages
constexpr absl::Duration kPoll = absl::Milliseconds(20);
// Gloo wakes a wait for data and the watcher of the same connection at the same time.
constexpr absl::Duration kVerdictPatience = absl::Seconds(2);
constexpr absl::Duration kEndPatience = absl::Milliseconds(100);

}  // namespace

GlooExchange::GlooExchange(int rank, std::vector<std::unique_ptr<GlooLink>> links, uint64_t tag)
    : rank_(rank), tag_(tag), peers_(links.size()) {
  CHECK(links[rank] == nullptr);
  for (size_t r = 0; r < links.size(); ++r) peers_[r].link = std::move(links[r]);
}

GlooExchange::~GlooExchange() {
  bool tell = false;
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
    tell = met_ && end_.ok();
    if (tell) end_ = absl::UnavailableError("collective: this rank has left");
  }
  for (Peer& peer : peers_) {
    if (peer.link == nullptr) continue;
    if (tell) peer.link->FlushMessage();  // others may still be in the last operation
    if (tell) (void)peer.link->SendControl(Message(ControlKind::kLeft, rank_));
    peer.link->FlushControl();
    peer.link->WakeControl();
  }
  for (Peer& peer : peers_) {
    if (peer.watcher.joinable()) peer.watcher.join();
  }
}

ControlMessage GlooExchange::Message(ControlKind kind, int who) const {
  return {.magic = kMagic,
          .tag = tag_,
          .kind = kind,
          .who = static_cast<uint32_t>(who),
          .world = static_cast<uint32_t>(world()),
          .unused = 0};
}

absl::Status GlooExchange::Connect(const std::vector<std::string>& addresses, absl::Time deadline,
                                   const std::atomic<bool>* stop) {
  CHECK_EQ(addresses.size(), peers_.size());
  for (int r = 0; r < world(); ++r) {
    if (r != rank_)
      peers_[r].watcher = std::thread([this, r, address = addresses[r]] { Watch(r, address); });
  }
  absl::Status status;
  bool all = false;
  while (status.ok() && !all) {
    absl::MutexLock lock(&mu_);
    const auto settled = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      all = true;
      for (int r = 0; r < world(); ++r) {
        if (r == rank_) continue;
        all = all && peers_[r].connected;
        if (status.ok()) status = peers_[r].failure;
      }
      return all || !status.ok();
    };
    mu_.AwaitWithTimeout(absl::Condition(&settled), std::min(kPoll, deadline - absl::Now()));
    if (!status.ok() || all) break;
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
      status = absl::CancelledError("called off");
    } else if (absl::Now() >= deadline) {
      status = absl::DeadlineExceededError("not all ranks came");
    }
  }
  if (!status.ok()) {
    for (Peer& peer : peers_) {
      if (peer.link != nullptr) peer.link->Close();
    }
    failure_ = status;
    return status;
  }
  for (Peer& peer : peers_) {
    if (peer.link == nullptr) continue;
    // Whoever is gone by now is found in the first meeting.
    for (int i = 1; i <= 2; ++i) (void)peer.link->AskForMessage(i & 1);
  }
  absl::MutexLock lock(&mu_);
  met_ = true;
  return absl::OkStatus();
}

std::vector<int> GlooExchange::Missing() const {
  std::vector<int> missing;
  absl::MutexLock lock(&mu_);
  for (int r = 0; r < world(); ++r) {
    if (r != rank_ && !peers_[r].connected) missing.push_back(r);
  }
  return missing;
}

absl::Status GlooExchange::Greet(int r, const std::string& address) {
  GlooLink& link = *peers_[r].link;
  const auto named = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat("no connection to rank ", r, " at ", GlooAddressText(address),
                                     ": ", status.message()));
  };
  if (const absl::Status status = link.Connect(address); !status.ok()) return named(status);
  if (const absl::Status status = link.SendControl(Message(ControlKind::kHello, rank_));
      !status.ok())
    return named(status);
  const auto hello = link.ReceiveControl();
  if (!hello.ok()) return named(hello.status());
  if (!hello->has_value()) return named(absl::CancelledError("called off"));
  const ControlMessage& got = **hello;
  if (got.magic != kMagic || got.tag != tag_ || got.kind != ControlKind::kHello ||
      got.who != static_cast<uint32_t>(r) || got.world != static_cast<uint32_t>(world())) {
    return named(absl::FailedPreconditionError(
        "somebody else answered, or a rank of another communicator or build"));
  }
  return absl::OkStatus();
}

void GlooExchange::Watch(int r, const std::string& address) {
  Peer& peer = peers_[r];
  const absl::Status greeted = Greet(r, address);
  {
    absl::MutexLock lock(&mu_);
    peer.connected = greeted.ok();
    peer.failure = greeted;
    if (!greeted.ok()) {
      peer.over = true;
      return;
    }
  }
  for (;;) {
    const auto message = peer.link->ReceiveControl();
    {
      absl::MutexLock lock(&mu_);
      if (closing_) return;
    }
    if (!message.ok()) {
      {
        absl::MutexLock lock(&mu_);
        peer.over = true;
        if (!met_)
          peer.failure = absl::UnavailableError(
              absl::StrCat("the connection to rank ", r, " broke: ", message.status().message()));
      }
      End(ControlKind::kLost, r,
          absl::UnavailableError(absl::StrCat("collective: the connection to rank ", r,
                                              " broke: ", message.status().message())));
      return;
    }
    if (!message->has_value()) continue;
    OnEnd(r, **message);
    return;
  }
}

void GlooExchange::OnEnd(int r, const ControlMessage& message) {
  const bool sane = message.magic == kMagic && message.tag == tag_ &&
                    message.who < static_cast<uint32_t>(world());
  const int who = static_cast<int>(message.who);
  const bool left = sane && message.kind == ControlKind::kLeft && who == r;
  // The cause comes before `over`: Verdict looks for it then, and would find one of its own.
  if (left) {
    // What it sent before counts: only who wants more from it has lost it.
  } else if (sane && message.kind == ControlKind::kLeft) {
    // Rank r wanted more from it.
    End(message.kind, who,
        absl::UnavailableError(
            absl::StrCat("collective: rank ", who, " has left the group, rank ", r, " says")));
  } else if (sane && message.kind == ControlKind::kAborted) {
    End(message.kind, who, CollectiveAbort(who));
  } else if (sane && message.kind == ControlKind::kLost) {
    End(message.kind, who,
        absl::UnavailableError(
            absl::StrCat("collective: rank ", who, " was lost, rank ", r, " says")));
  } else {
    End(ControlKind::kLost, r,
        absl::UnavailableError(absl::StrCat("collective: rank ", r, " sent nonsense")));
  }
  {
    absl::MutexLock lock(&mu_);
    peers_[r].over = true;
    peers_[r].left = left;
  }
  if (left) peers_[r].link->WakeData();
}

void GlooExchange::End(ControlKind kind, int who, const absl::Status& status) {
  bool tell = false;
  {
    absl::MutexLock lock(&mu_);
    if (!end_.ok()) return;
    end_ = status;
    tell = met_;
  }
  for (int r = 0; r < world(); ++r) {
    if (r == rank_) continue;
    if (tell && r != who) (void)peers_[r].link->SendControl(Message(kind, who));
    peers_[r].link->WakeData();
  }
}

void GlooExchange::Abort() { End(ControlKind::kAborted, rank_, CollectiveAbort(rank_)); }

absl::Status GlooExchange::EndStatus() const {
  absl::MutexLock lock(&mu_);
  return end_;
}

absl::Status GlooExchange::Begin(const Operation& operation) {
  RETURN_IF_ERROR(failure_);
  ++told_.sequence;
  told_.packed = PackOperation(operation);
  int left = -1;
  {
    absl::MutexLock lock(&mu_);
    failure_ = end_;
    for (int r = world() - 1; r >= 0; --r) {
      if (peers_[r].left) left = r;
    }
  }
  if (failure_.ok() && left >= 0) failure_ = Verdict(left, absl::OkStatus());
  return failure_;
}

absl::Status GlooExchange::NextPhase() {
  RETURN_IF_ERROR(failure_);
  for (int r = 0; r < world(); ++r) {
    if (r == rank_) continue;
    GlooLink& link = *peers_[r].link;
    // The buffers of phase_ have been read: they take phase_ + 2. A connection that broke shows in
    // the wait for its message.
    if (phase_ > 0) (void)link.AskForMessage(parity());
    for (bool sent = false; !sent;) {
      const absl::StatusOr<bool> done = link.AwaitSent();
      sent = !done.ok() || *done;
      failure_ = EndStatus();
      RETURN_IF_ERROR(failure_);
      if (!sent) {
        absl::MutexLock lock(&mu_);
        if (peers_[r].left) break;
      }
    }
  }
  return absl::OkStatus();
}

absl::Status GlooExchange::Meet(absl::Span<const uint64_t> send, absl::Span<const uint64_t> want) {
  RETURN_IF_ERROR(failure_);
  ++phase_;
  for (int r = 0; r < world(); ++r) {
    if (r == rank_) continue;
    const MessageHead head = {.sequence = told_.sequence,
                              .operation = told_.packed,
                              .phase = phase_,
                              .bytes = send[r],
                              .sum = MessageSum(Stage(r), send[r])};
    (void)peers_[r].link->SendMessage(head);  // what is broken shows in the wait below
  }
  for (int r = 0; r < world() && failure_.ok(); ++r) {
    if (r != rank_) failure_ = AwaitMessage(r);
  }
  if (!failure_.ok()) return failure_;
  failure_ = Compare(want);
  if (!failure_.ok()) {
    // A rank that was aborted is in no operation any more; that it was may still be on its way.
    absl::MutexLock lock(&mu_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !end_.ok(); };
    if (mu_.AwaitWithTimeout(absl::Condition(&ended), kEndPatience)) failure_ = end_;
  }
  return failure_;
}

absl::Status GlooExchange::AwaitMessage(int r) {
  GlooLink& link = *peers_[r].link;
  for (;;) {
    bool left = false;
    {
      absl::MutexLock lock(&mu_);
      if (!end_.ok()) return end_;
      left = peers_[r].left;
    }
    if (left && !link.HasMessage(parity())) return Verdict(r, absl::OkStatus());
    if (left) return absl::OkStatus();
    const absl::StatusOr<bool> came = link.AwaitMessage(parity());
    if (!came.ok()) return Verdict(r, came.status());
    if (*came) return absl::OkStatus();
  }
}

absl::Status GlooExchange::Verdict(int r, const absl::Status& broken) {
  bool left = false;
  {
    absl::MutexLock lock(&mu_);
    const bool& over = peers_[r].over;
    mu_.AwaitWithTimeout(absl::Condition(&over), kVerdictPatience);
    left = peers_[r].left;
  }
  if (left) {
    End(ControlKind::kLeft, r,
        absl::UnavailableError(absl::StrCat("collective: rank ", r, " has left the group")));
  } else {
    End(ControlKind::kLost, r,
        absl::UnavailableError(
            absl::StrCat("collective: the connection to rank ", r, " broke: ", broken.message())));
  }
  return EndStatus();
}

absl::Status GlooExchange::Compare(absl::Span<const uint64_t> want) const {
  const auto told = [&](int r) {
    if (r == rank_) return told_;
    const MessageHead head = peers_[r].link->head(parity());
    return ToldOperation{head.sequence, head.operation};
  };
  // Everyone compares everyone with rank 0, so all ranks come to the same verdict.
  const ToldOperation first = told(0);
  for (int r = 1; r < world(); ++r) {
    if (const ToldOperation other = told(r); other != first) return RanksDisagree(first, r, other);
  }
  for (int r = 0; r < world(); ++r) {
    if (r == rank_) continue;
    const MessageHead head = peers_[r].link->head(parity());
    if (head.phase != phase_ || head.bytes != want[r] || head.sum != MessageSum(Of(r), want[r])) {
      return absl::InternalError(absl::StrCat("collective: the message of rank ", r, " in phase ",
                                              phase_, " of operation ", told_.sequence,
                                              " was corrupted on the way"));
    }
  }
  return absl::OkStatus();
}

}  // namespace bitshard
