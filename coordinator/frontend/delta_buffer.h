// Output that a client has not taken yet: merged into one piece a choice, bounded in time.
//
// Owned by one stream, guarded by its lock. The engine puts in at its own pace and is never held
// up; what cannot be written at once is coalesced. A client that leaves more than the bound unread
// for longer than the patience is too slow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "coordinator/engine/engine.h"

namespace bitshard {

struct SlowReaderPolicy {
  uint32_t max_pending_tokens = 1024;           // of all choices
  uint64_t max_pending_bytes = 1 << 20;         // the same
  absl::Duration patience = absl::Seconds(10);  // over the bound
  absl::Time (*now)() = &absl::Now;             // the clock
};

class DeltaBuffer {
 public:
  explicit DeltaBuffer(const SlowReaderPolicy& policy) : policy_(policy) {}

  // True: merged into a piece that waits.
  bool Push(TokenDelta delta, absl::Time now);
  bool empty() const { return pending_.empty(); }
  // Pieces that wait: one a choice at most.
  size_t size() const { return pending_.size(); }
  // All that is pending, in the order in which the pieces began.
  std::vector<TokenDelta> Take();
  void Clear();
  // Over the bound for longer than the policy allows.
  bool TooSlow(absl::Time now) const {
    return over_since_ && now - *over_since_ > policy_.patience;
  }
  // Deltas that were merged into an earlier one.
  uint64_t coalesced() const { return coalesced_; }

 private:
  const SlowReaderPolicy policy_;
  std::vector<TokenDelta> pending_;
  uint64_t pending_bytes_ = 0, pending_tokens_ = 0;
  std::optional<absl::Time> over_since_;
  uint64_t coalesced_ = 0;
};

}  // namespace bitshard
