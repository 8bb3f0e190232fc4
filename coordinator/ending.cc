#include "coordinator/ending.h"

#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

namespace bitshard {

void Ending::Begin(Reason reason) {
  absl::MutexLock lock(&mu_);
  const absl::Time end = absl::Now() + reason.drain;
  if (end >= end_) return;
  end_ = end;
  reasons_.push_back(std::move(reason));
}

Ending::Reason Ending::Await() {
  absl::MutexLock lock(&mu_);
  const auto begun = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !reasons_.empty(); };
  mu_.Await(absl::Condition(&begun));
  return reasons_.front();
}

void Ending::Drain(const std::function<void(const Reason&)>& drain) {
  std::vector<std::thread> drains;
  while (const std::optional<Reason> reason = Next()) {
    drains.emplace_back([this, &drain, reason = *reason] {
      drain(reason);
      absl::MutexLock lock(&mu_);
      drained_ = true;
    });
  }
  for (std::thread& thread : drains) thread.join();
}

std::optional<Ending::Reason> Ending::Next() {
  absl::MutexLock lock(&mu_);
  const auto next = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return drained_ || !reasons_.empty();
  };
  mu_.Await(absl::Condition(&next));
  if (drained_) return std::nullopt;
  Reason reason = std::move(reasons_.front());
  reasons_.pop_front();
  return reason;
}

}  // namespace bitshard
