#include "worker/collective/timed.h"

#include <chrono>
#include <utility>

namespace bitshard {
namespace {

class TimedCollective final : public Collective {
 public:
  TimedCollective(std::unique_ptr<Collective> inner, CollectiveWatcher* watcher)
      : inner_(std::move(inner)), watcher_(watcher) {}

  int rank() const override { return inner_->rank(); }
  int world() const override { return inner_->world(); }

  absl::Status AllReduceSum(absl::Span<int64_t> values) override {
    return Timed(CollectiveOp::kAllReduce, values.size() * sizeof(int64_t),
                 [&] { return inner_->AllReduceSum(values); });
  }
  absl::Status AllGather(absl::Span<const uint8_t> mine, absl::Span<uint8_t> all) override {
    return Timed(CollectiveOp::kAllGather, mine.size(),
                 [&] { return inner_->AllGather(mine, all); });
  }
  absl::Status Broadcast(absl::Span<uint8_t> data, int root) override {
    return Timed(CollectiveOp::kBroadcast, root == inner_->rank() ? data.size() : 0,
                 [&] { return inner_->Broadcast(data, root); });
  }
  void Abort() override { inner_->Abort(); }
  // Untimed: what is enqueued there takes its time later.
  DeviceCollective* device_collective() override { return inner_->device_collective(); }

 private:
  template <typename Fn>
  absl::Status Timed(CollectiveOp op, uint64_t bytes, Fn fn) {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    absl::Status status = fn();
    watcher_->OnCollective(op, bytes, std::chrono::nanoseconds(Clock::now() - begin).count());
    return status;
  }

  const std::unique_ptr<Collective> inner_;
  CollectiveWatcher* const watcher_;
};

}  // namespace

std::unique_ptr<Collective> MakeTimedCollective(std::unique_ptr<Collective> inner,
                                                CollectiveWatcher* watcher) {
  return std::make_unique<TimedCollective>(std::move(inner), watcher);
}

}  // namespace bitshard
