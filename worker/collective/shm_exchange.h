// The one step all shared-memory collectives are made of: every rank fills its staging buffer, all
// wait for all, every rank reads the others' buffers.
//
//   uint8_t* out = exchange.Stage();            // own buffer of the next phase
//   ... write at most kShmStagingBytes ...
//   RETURN_IF_ERROR(exchange.Meet(op));         // says what it is doing, waits for all ranks,
//   compares
//   ... read exchange.Of(r) until the next Meet ...
//
// Why two buffers a rank suffice: a rank fills its buffer of phase p + 2 only after all have met in
// p + 1, and a rank comes to p + 1 only when it has read phase p.
//
// Waiting: a bounded spin of some microseconds, nearly none where ranks must share CPUs, then a
// futex on the awaited rank's phase word. Every kRecheck the sleeper looks whether the group was
// aborted or the awaited rank has died. Used by one thread, except Abort.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

#include "worker/collective/operation.h"
#include "worker/collective/shm_layout.h"

namespace bitshard {

class ShmExchange {
 public:
  // `alive(r)`: whether rank r still holds the segment. The memory of `view` outlives the exchange.
  ShmExchange(ShmView view, int rank, std::function<bool(int)> alive);

  int rank() const { return rank_; }
  int world() const { return view_.world(); }

  // A new operation: the phases that follow belong to it. UNAVAILABLE when the group has ended.
  absl::Status Begin();

  uint8_t* Stage() const { return view_.staging(rank_, (phase_ + 1) & 1); }

  // INTERNAL on every rank when the ranks are in different operations; UNAVAILABLE when a rank
  // died, left or aborted. After an error every later call returns it again.
  absl::Status Meet(const Operation& op);

  const uint8_t* Of(int r) const { return view_.staging(r, phase_ & 1); }

  // Any thread: ends the group for all ranks.
  void Abort() { End(ShmEnd::kAborted, rank_); }
  // This rank goes in order; peers that wait for it learn so at once.
  void Leave() { End(ShmEnd::kLeft, rank_); }

 private:
  void End(ShmEnd why, int who);
  absl::Status EndStatus() const;  // OK while the group lives
  absl::Status WaitFor(int peer);
  absl::Status Compare() const;

  const ShmView view_;
  const int rank_;
  const std::function<bool(int)> alive_;
  int64_t spin_ns_ = 0;
  uint32_t phase_ = 0;
  uint64_t sequence_ = 0;
  absl::Status failure_;
};

}  // namespace bitshard
