#include "coordinator/schedule/step_time_model.h"

#include <algorithm>
#include <cmath>

namespace bitshard {
namespace {

constexpr double kForget = 0.98;      // weight of a step when the next of its kind comes
constexpr double kForgetFast = 0.9;   // the same, when it is far off: the machine may have changed
constexpr double kSpreadRate = 0.05;  // weight of a new step in the spread
constexpr double kOutlier = 4;        // x spread: from here on a step's pull does not grow
constexpr double kLeastSpread = 0.005;
constexpr double kMostGrowth = 100;  // a step that seems to take more times the usual is cut
constexpr uint64_t kTrusted = 12;    // steps of a kind, before which none is an outlier
constexpr uint64_t kFirstPrefills = 4;
constexpr double kInertia = 1e-3;  // pull of the last fit, beside the steps'
constexpr int kSweeps = 24;
constexpr uint32_t kMostTokens = 1 << 16;

// Bring the terms near 1.
constexpr double kPrefillUnit = 256, kDecodeUnit = 32, kContextUnit = 1 << 16;

}  // namespace

StepTimeModel::Terms StepTimeModel::TermsOf(const StepLoad& load) {
  return {1, load.prefill_tokens / kPrefillUnit, load.decode_rows / kDecodeUnit,
          static_cast<double>(load.context_tokens) / kContextUnit};
}

void StepTimeModel::Sums::Add(const Terms& x, double y, double weight, double forget) {
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) xx[i][j] = forget * xx[i][j] + weight * x[i] * x[j];
    xy[i] = forget * xy[i] + weight * x[i] * y;
  }
  ++count;
}

void StepTimeModel::Observe(const StepLoad& load, double seconds) {
  if (load.prefill_tokens + load.decode_rows == 0 || !(seconds > 0) || std::isinf(seconds)) return;
  Sums& sums = load.prefill_tokens > 0 ? prefill_ : decode_;
  // Noise grows with the step: what counts is how far off it is in relation to what it takes.
  double usual = seconds, weight = 1, forget = kForget;
  if (sums.count >= kTrusted) {
    usual = std::max(Expected(load), seconds / kMostGrowth);
    const double off = std::abs(seconds / usual - 1);
    const double most = kOutlier * std::max(spread_, kLeastSpread);
    if (off > most) {
      weight = most / off;
      forget = kForgetFast;
    }
    spread_ += kSpreadRate * (std::min(off, most) - spread_);
  }
  sums.Add(TermsOf(load), seconds, weight / (usual * usual), forget);
  Fit();
}

// Coordinate descent from the last fit on: as good as exact, for the sums change little from step
// to step, and it keeps every factor at 0 or above. Where the steps do not tell terms apart (always
// the same number of rows), the last fit decides.
void StepTimeModel::Fit() {
  const Terms last = factors_;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int i = 0; i < kTerms; ++i) {
      const double own = decode_.xx[i][i] + prefill_.xx[i][i];
      if (own == 0) continue;
      const double inertia = kInertia * own;
      double rest = decode_.xy[i] + prefill_.xy[i] + inertia * last[i];
      for (int j = 0; j < kTerms; ++j) {
        if (j != i) rest -= (decode_.xx[i][j] + prefill_.xx[i][j]) * factors_[j];
      }
      factors_[i] = std::max(0., rest / (own + inertia));
    }
  }
}

double StepTimeModel::Expected(const StepLoad& load) const {
  const Terms x = TermsOf(load);
  double seconds = 0;
  for (int i = 0; i < kTerms; ++i) seconds += factors_[i] * x[i];
  return seconds;
}

uint32_t StepTimeModel::PrefillWithin(double seconds, const StepLoad& load, uint32_t start) const {
  const uint32_t least = load.prefill_tokens == 0 ? kLeastChunk : 0;
  if (prefill_.count < kFirstPrefills)
    return std::max(least, kCautiousChunk - std::min(kCautiousChunk, load.prefill_tokens));
  // The time grows with the tokens: halve the range.
  uint32_t fits = 0, too_many = kMostTokens + 1;
  while (too_many - fits > 1) {
    const uint32_t n = fits + (too_many - fits) / 2;
    StepLoad with = load;
    with.prefill_tokens += n;
    with.context_tokens += StepLoad::ContextOf(start, n);
    (MostlyWithin(with) <= seconds ? fits : too_many) = n;
  }
  return std::max(least, fits);
}

}  // namespace bitshard
