// The one step all Gloo collectives are made of: every rank sends a message to every other, all
// wait for all, every rank reads what it got.
//
//   RETURN_IF_ERROR(exchange.Begin(operation));  // once an operation
//   RETURN_IF_ERROR(exchange.NextPhase());
//   ... write at most kGlooPayloadBytes to exchange.Stage(r), for every other r ...
//   RETURN_IF_ERROR(exchange.Meet(send, want));  // bytes to and from each rank
//   ... read exchange.Of(r) until the next NextPhase ...
//
// Why two receive buffers a peer suffice: a rank sends its message of phase p + 2 only after all
// have met in p + 1, and a rank comes to p + 1 only when it has read phase p.
//
// A thread a peer connects, then sleeps until the connection ends or the peer says how the group
// ended for it. The first cause that a rank learns is told to all others, and all waits end. Used
// by one thread, except Abort.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "worker/collective/gloo_link.h"
#include "worker/collective/operation.h"

namespace bitshard {

class GlooExchange {
 public:
  // `links` by rank, none for the own one. `tag`: differs from communicator to communicator.
  GlooExchange(int rank, std::vector<std::unique_ptr<GlooLink>> links, uint64_t tag);
  ~GlooExchange();  // tells the others that this rank has left

  int rank() const { return rank_; }
  int world() const { return static_cast<int>(peers_.size()); }

  // Once, first. `addresses`: of the link to this rank, by rank. UNAVAILABLE when a connection
  // broke; DEADLINE_EXCEEDED when ranks did not come in time, which Missing then names; CANCELLED
  // soon after `*stop`, which may be null, was set; FAILED_PRECONDITION when somebody else
  // answered.
  absl::Status Connect(const std::vector<std::string>& addresses, absl::Time deadline,
                       const std::atomic<bool>* stop);
  std::vector<int> Missing() const;

  // UNAVAILABLE when the group has ended; after an error every later call returns it again.
  absl::Status Begin(const Operation& operation);
  absl::Status NextPhase();
  uint8_t* Stage(int r) { return peers_[r].link->send_payload(); }
  // INTERNAL on every rank when the ranks are in different operations, and when a message was
  // corrupted; UNAVAILABLE when a rank was lost, left or aborted.
  absl::Status Meet(absl::Span<const uint64_t> send, absl::Span<const uint64_t> want);
  const uint8_t* Of(int r) const { return peers_[r].link->payload(parity()); }

  // Any thread: ends the group for all ranks.
  void Abort();

 private:
  struct Peer {
    std::unique_ptr<GlooLink> link;
    std::thread watcher;
    // Under mu_.
    bool connected = false;
    bool left = false;  // in order: what it sent before is complete
    bool over = false;  // its watcher has seen the end of it
    absl::Status failure;
  };

  int parity() const { return static_cast<int>(phase_ & 1); }
  void Watch(int r, const std::string& address);
  absl::Status Greet(int r, const std::string& address);
  void OnEnd(int r, const ControlMessage& message);
  // The first cause wins.
  void End(ControlKind kind, int who, const absl::Status& status);
  ControlMessage Message(ControlKind kind, int who) const;
  absl::Status EndStatus() const;
  absl::Status AwaitMessage(int r);
  // Why nothing more comes from r.
  absl::Status Verdict(int r, const absl::Status& broken);
  absl::Status Compare(absl::Span<const uint64_t> want) const;

  const int rank_;
  const uint64_t tag_;
  std::vector<Peer> peers_;

  mutable absl::Mutex mu_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool met_ ABSL_GUARDED_BY(mu_) = false;  // all were connected: ends are told from then on
  absl::Status end_ ABSL_GUARDED_BY(mu_);

  // The using thread's own.
  ToldOperation told_;
  uint64_t phase_ = 0;  // of the last meeting
  absl::Status failure_;
};

}  // namespace bitshard
