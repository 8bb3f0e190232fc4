#include "coordinator/grammar/grammar_memory.h"

#include <utility>

namespace bitshard {
namespace {

// Masks between two measurements: a thousand kept masks are looked at in 50 us, and making a new
// one takes a millisecond.
constexpr uint64_t kMeasureEvery = 16;

}  // namespace

void GrammarMemory::Change(int64_t grammars, int64_t bytes) {
  absl::MutexLock lock(&mu_);
  grammars_ += grammars;
  bytes_ += bytes;
}

bool GrammarMemory::TooLarge(uint64_t bytes) const {
  if (bytes > limits_.one) return true;
  absl::MutexLock lock(&mu_);
  const uint64_t all = static_cast<uint64_t>(bytes_);
  return all > limits_.all && bytes * static_cast<uint64_t>(grammars_) >= all;
}

GrammarSize::GrammarSize(std::shared_ptr<GrammarMemory> all, std::function<uint64_t()> measure)
    : all_(std::move(all)), measure_(std::move(measure)), bytes_(measure_()) {}

void GrammarSize::Join() {
  absl::MutexLock lock(&mu_);
  if (followers_++ == 0) all_->Change(1, static_cast<int64_t>(bytes_));
}

void GrammarSize::Leave() {
  absl::MutexLock lock(&mu_);
  if (--followers_ == 0) all_->Change(-1, -static_cast<int64_t>(bytes_));
}

void GrammarSize::Filled() {
  absl::MutexLock lock(&mu_);
  if (++filled_ % kMeasureEvery != 0) return;
  const uint64_t before = bytes_;
  bytes_ = measure_();
  if (followers_ > 0) all_->Change(0, static_cast<int64_t>(bytes_) - static_cast<int64_t>(before));
}

uint64_t GrammarSize::bytes() const {
  absl::MutexLock lock(&mu_);
  return bytes_;
}

}  // namespace bitshard
