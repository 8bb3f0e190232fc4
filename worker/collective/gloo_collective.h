// The three operations over GlooExchange. Messages longer than a payload go in pieces. Sums of long
// pieces between three or more ranks are scattered (each rank adds one slice) and gathered; all
// others are added by every rank for itself, in one round.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "worker/collective/collective.h"
#include "worker/collective/gloo_exchange.h"

namespace bitshard {

class GlooCollective final : public Collective {
 public:
  // `exchange` is connected.
  explicit GlooCollective(std::unique_ptr<GlooExchange> exchange);

  int rank() const override { return exchange_->rank(); }
  int world() const override { return exchange_->world(); }
  absl::Status AllReduceSum(absl::Span<int64_t> values) override;
  absl::Status AllGather(absl::Span<const uint8_t> mine, absl::Span<uint8_t> all) override;
  absl::Status Broadcast(absl::Span<uint8_t> data, int root) override;
  void Abort() override { exchange_->Abort(); }

 private:
  absl::Status ReduceInOneRound(absl::Span<int64_t> piece);
  absl::Status ReduceInSlices(absl::Span<int64_t> piece);
  // The same bytes to all, and `want` bytes from each.
  absl::Status MeetWith(absl::Span<const uint8_t> mine, uint64_t want);

  const std::unique_ptr<GlooExchange> exchange_;
  std::vector<uint64_t> send_, want_;  // bytes, by rank
};

}  // namespace bitshard
