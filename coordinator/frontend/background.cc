#include "coordinator/frontend/background.h"

#include <utility>

#include "coordinator/engine/error_reason.h"

namespace bitshard {

Background::Background(size_t max_queued, size_t max_bytes)
    : max_queued_(max_queued), max_bytes_(max_bytes), thread_([this] { Loop(); }) {}

Background::~Background() {
  Stop();
  thread_.Join();
}

bool Background::Run(size_t bytes, Work work) {
  {
    absl::MutexLock lock(&mu_);
    if (!stopping_) {
      if (queue_.size() >= max_queued_) return false;
      if (!queue_.empty() && bytes_ + bytes > max_bytes_) return false;
      bytes_ += bytes;
      queue_.push_back({bytes, std::move(work)});
      return true;
    }
  }
  work(DrainingError());
  return true;
}

void Background::Stop() {
  std::deque<Queued> left;
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    left.swap(queue_);
    bytes_ = 0;
  }
  for (const Queued& queued : left) queued.run(DrainingError());
}

void Background::Loop() {
  while (true) {
    Work work;
    {
      absl::MutexLock lock(&mu_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || !queue_.empty();
      };
      mu_.Await(absl::Condition(&ready));
      if (stopping_) return;
      bytes_ -= queue_.front().bytes;
      work = std::move(queue_.front().run);
      queue_.pop_front();
    }
    work(absl::OkStatus());
  }
}

}  // namespace bitshard
