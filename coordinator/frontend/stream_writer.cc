#include "coordinator/frontend/stream_writer.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"

namespace bitshard {
namespace {

constexpr absl::Duration kLookAgain = absl::Milliseconds(100);

}  // namespace

StreamWriter::StreamWriter() : thread_([this] { Loop(); }) {}

StreamWriter::~StreamWriter() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  thread_.join();
}

void StreamWriter::Wake(std::shared_ptr<PumpedStream> stream) {
  absl::MutexLock lock(&mu_);
  if (!stopping_) ready_.push_back(std::move(stream));
}

void StreamWriter::Loop() {
  absl::Time next_look = absl::InfiniteFuture();
  while (true) {
    std::deque<std::shared_ptr<PumpedStream>> ready;
    {
      absl::MutexLock lock(&mu_);
      const auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        return stopping_ || !ready_.empty();
      };
      beat_.Waits();
      mu_.AwaitWithDeadline(absl::Condition(&work), next_look);
      beat_.Works();
      if (stopping_) break;
      ready.swap(ready_);
    }
    const absl::Time now = absl::Now();
    for (std::shared_ptr<PumpedStream>& stream : ready) {
      if (stream->Pump(now) && std::find(again_.begin(), again_.end(), stream) == again_.end()) {
        again_.push_back(std::move(stream));
      }
    }
    if (again_.empty()) {
      next_look = absl::InfiniteFuture();
    } else if (next_look == absl::InfiniteFuture()) {
      next_look = now + kLookAgain;
    } else if (now >= next_look) {
      std::erase_if(again_, [now](const std::shared_ptr<PumpedStream>& stream) {
        return !stream->Pump(now);
      });
      next_look = now + kLookAgain;
    }
  }
}

}  // namespace bitshard
