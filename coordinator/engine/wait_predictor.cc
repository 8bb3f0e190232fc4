#include "coordinator/engine/wait_predictor.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace bitshard {
namespace {

constexpr absl::Duration kMemory = absl::Seconds(10);
// A rate over less than this would be noise.
constexpr absl::Duration kShortest = absl::Seconds(1);

double Fade(absl::Duration time) { return std::exp(-absl::FDivDuration(time, kMemory)); }

}  // namespace

absl::Duration PredictWait(const ServiceRates& rates, const QueueAhead& ahead) {
  const double tokens = static_cast<double>(ahead.prompt_tokens) * (1 - rates.cached_part) +
                        static_cast<double>(ahead.uncomputed_tokens);
  const double prefill = tokens * rates.prefill_token_seconds;
  const uint64_t free =
      ahead.blocked || ahead.running >= ahead.places ? 0 : ahead.places - ahead.running;
  double places = 0;
  if (ahead.requests + 1 > free && ahead.running > 0) {
    const double ends = static_cast<double>(ahead.requests + 1 - free);
    places = ends / ahead.running * rates.outputs * rates.decode_step_seconds;
  }
  return absl::Seconds(std::max(prefill, places));
}

void WaitError::Add(absl::Duration predicted, absl::Duration waited) {
  const double ratio = absl::FDivDuration(waited, predicted);
  if (ratios_.size() < kMemory) {
    ratios_.push_back(ratio);
  } else {
    ratios_[next_] = ratio;
    next_ = (next_ + 1) % kMemory;
  }
  if (ratios_.size() < kLeast || (++since_ < kEvery && ratio <= factor_)) return;
  since_ = 0;
  sorted_ = ratios_;
  const auto at = sorted_.begin() + static_cast<std::ptrdiff_t>(sorted_.size() / kBeyond);
  std::nth_element(sorted_.begin(), at, sorted_.end(), std::greater<>());
  factor_ = std::clamp(*at, 1., kMost);
}

void RecentRate::Add(uint64_t count, absl::Time now) {
  if (first_ == absl::InfinitePast()) first_ = last_ = now;
  if (now > last_) {  // a wall clock may be set back
    weighted_ *= Fade(now - last_);
    last_ = now;
  }
  weighted_ += static_cast<double>(count);
}

double RecentRate::At(absl::Time now) const {
  if (first_ == absl::InfinitePast()) return 0;
  // The weights of the time since the first of all, all together, in seconds.
  const absl::Duration age = std::max(now - first_, kShortest);
  const double seconds = absl::ToDoubleSeconds(kMemory) * (1 - Fade(age));
  return weighted_ * Fade(std::max(now - last_, absl::ZeroDuration())) / seconds;
}

void RecentMean::Add(double value) {
  count_ = std::min(count_ + 1, memory_);
  mean_ += (value - mean_) / count_;
}

}  // namespace bitshard
