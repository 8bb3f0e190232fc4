// The host's operations of a group of one: each is the identity.
#pragma once

#include <atomic>
#include <cstring>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "kernels/base/check.h"
#include "worker/collective/collective.h"

namespace bitshard {

// Base: Collective, or one with more operations.
template <class Base>
class SoloOf : public Base {
 public:
  int rank() const final { return 0; }
  int world() const final { return 1; }

  absl::Status AllReduceSum(absl::Span<int64_t>) final { return Alive(); }
  absl::Status AllGather(absl::Span<const uint8_t> mine, absl::Span<uint8_t> all) final {
    CHECK_EQ(all.size(), mine.size());
    if (!mine.empty() && mine.data() != all.data())
      std::memmove(all.data(), mine.data(), mine.size());
    return Alive();
  }
  absl::Status Broadcast(absl::Span<uint8_t>, int root) final {
    CHECK_EQ(root, 0);
    return Alive();
  }
  void Abort() final { aborted_.store(true, std::memory_order_release); }

 protected:
  // OK until Abort.
  absl::Status Alive() const {
    if (!aborted_.load(std::memory_order_acquire)) return absl::OkStatus();
    return CollectiveAbort(0);
  }

 private:
  std::atomic<bool> aborted_{false};
};

}  // namespace bitshard
