// The three operations over ShmExchange. Messages longer than a staging buffer go in pieces; sums
// of big pieces are scattered (each rank adds one slice) and gathered, sums of small ones are added
// by every rank for itself.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "worker/collective/collective.h"
#include "worker/collective/shm_exchange.h"
#include "worker/collective/shm_segment.h"

namespace bitshard {

class ShmCollective final : public Collective {
 public:
  // `segment` may be null: then the owner of the view's memory keeps it alive and `alive` watches
  // the peers.
  ShmCollective(std::unique_ptr<ShmSegment> segment, ShmView view, int rank,
                std::function<bool(int)> alive);
  ~ShmCollective() override;

  int rank() const override { return exchange_.rank(); }
  int world() const override { return exchange_.world(); }
  absl::Status AllReduceSum(absl::Span<int64_t> values) override;
  absl::Status AllGather(absl::Span<const uint8_t> mine, absl::Span<uint8_t> all) override;
  absl::Status Broadcast(absl::Span<uint8_t> data, int root) override;
  void Abort() override { exchange_.Abort(); }

 private:
  absl::Status ReduceSmall(absl::Span<int64_t> piece, const Operation& op);
  absl::Status ReduceBig(absl::Span<int64_t> piece, const Operation& op);

  const std::unique_ptr<ShmSegment> segment_;
  ShmExchange exchange_;
};

}  // namespace bitshard
