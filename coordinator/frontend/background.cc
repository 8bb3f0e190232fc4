#include "coordinator/frontend/background.h"

#include <utility>

namespace bitshard {

Background::Background(size_t max_queued, size_t max_bytes)
    : max_queued_(max_queued), max_bytes_(max_bytes), thread_([this] { Loop(); }) {}

Background::~Background() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.Join();
}

bool Background::Run(size_t bytes, std::function<void()> work) {
  absl::MutexLock lock(&mu_);
  if (stopping_ || queue_.size() >= max_queued_) return false;
  if (!queue_.empty() && bytes_ + bytes > max_bytes_) return false;
  bytes_ += bytes;
  queue_.push_back({bytes, std::move(work)});
  return true;
}

void Background::Loop() {
  while (true) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mu_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || !queue_.empty();
      };
      mu_.Await(absl::Condition(&ready));
      if (queue_.empty()) return;
      bytes_ -= queue_.front().bytes;
      work = std::move(queue_.front().run);
      queue_.pop_front();
    }
    work();
  }
}

}  // namespace bitshard
