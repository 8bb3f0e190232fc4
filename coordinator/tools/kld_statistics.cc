#include "coordinator/tools/kld_statistics.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"

namespace bitshard {
namespace {

// llama-perplexity's: range of what is kept of the base, steps in it, and where it stops to count.
constexpr float kRange = 16;
constexpr float kSteps = 65535;
constexpr float kLeastLogProb = -16;

double LogSum(absl::Span<const float> logits, float max) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - max);
  return std::log(sum);
}

size_t Top(absl::Span<const float> row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// The base's log-probabilities as they come out of llama-perplexity's file.
void RoundAsLlamaCpp(absl::Span<const float> logits, std::vector<float>& out) {
  const auto [least, most] = std::minmax_element(logits.begin(), logits.end());
  const float max = *most, min = std::max(*least, max - kRange);
  const float log_sum = static_cast<float>(LogSum(logits, max));
  const float min_log_prob = min - max - log_sum;
  const float scale = (max - min) / kSteps;
  const float inverse = scale > 0 ? 1 / scale : 0;
  out.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    const float step = logits[i] > min ? std::nearbyintf(inverse * (logits[i] - min)) : 0.0f;
    out[i] = scale * step + min_log_prob;
  }
}

}  // namespace

void KldStatistics::Add(absl::Span<const float> base, absl::Span<const float> test,
                        uint32_t token) {
  CHECK(base.size() == test.size() && token < base.size())
      << base.size() << " and " << test.size() << " logits, token " << token;
  const size_t top_test = Top(test);
  const float max_test = test[top_test];
  const double log_sum_test = LogSum(test, max_test);
  const auto log_prob_test = [&](size_t i) {
    return static_cast<double>(test[i]) - max_test - log_sum_test;
  };

  double kld = 0, nll_base = 0;
  size_t top_base = 0;
  if (rule_ == Rule::kExact) {
    top_base = Top(base);
    const float max = base[top_base];
    const double log_sum = LogSum(base, max);
    const auto log_prob_base = [&](size_t i) {
      return static_cast<double>(base[i]) - max - log_sum;
    };
    for (size_t i = 0; i < base.size(); ++i) {
      kld += std::exp(log_prob_base(i)) * (log_prob_base(i) - log_prob_test(i));
    }
    nll_base = -log_prob_base(token);
  } else {
    RoundAsLlamaCpp(base, base_log_probs_);
    top_base = Top(base_log_probs_);
    for (size_t i = 0; i < base.size(); ++i) {
      const float log_prob = base_log_probs_[i];
      if (log_prob > kLeastLogProb) {
        kld += std::exp(log_prob) * (log_prob - static_cast<float>(log_prob_test(i)));
      }
    }
    nll_base = -static_cast<double>(base_log_probs_[token]);
  }
  const double nll_test = -log_prob_test(token);

  klds_.push_back(kld);
  kld_.Add(kld);
  nll_base_.Add(nll_base);
  nll_test_.Add(nll_test);
  nll_products_ += nll_base * nll_test;
  same_top_ += top_base == top_test ? 1 : 0;
  const double change = std::exp(-nll_test) - std::exp(-nll_base);
  change2_.Add(change * change);
}

Estimate KldStatistics::MeanOf(const Moments& moments) const {
  const double n = static_cast<double>(count());
  if (n < 1) return {};
  const double mean = moments.sum / n;
  const double variance = moments.sum2 / n - mean * mean;
  return {mean, variance > 0 && n > 10 ? std::sqrt(variance / (n - 1)) : 0};
}

Estimate KldStatistics::MeanKld() const { return MeanOf(kld_); }

double KldStatistics::KldQuantile(double fraction) const {
  CHECK(!klds_.empty());
  std::vector<double> sorted = klds_;
  std::sort(sorted.begin(), sorted.end());
  const double place = std::clamp(fraction, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(place);
  const double part = place - static_cast<double>(below);
  return (1 - part) * sorted[below] + part * sorted[std::min(below + 1, sorted.size() - 1)];
}

Estimate KldStatistics::SameTop() const {
  const double n = static_cast<double>(count());
  if (n < 1) return {};
  const double share = static_cast<double>(same_top_) / n;
  return {share, n > 1 ? std::sqrt(share * (1 - share) / (n - 1)) : 0};
}

Estimate KldStatistics::PerplexityBase() const {
  const Estimate log = MeanOf(nll_base_);
  return {std::exp(log.value), std::exp(log.value) * log.error};
}

Estimate KldStatistics::PerplexityTest() const {
  const Estimate log = MeanOf(nll_test_);
  return {std::exp(log.value), std::exp(log.value) * log.error};
}

Estimate KldStatistics::LogPerplexityRatio() const {
  const double n = static_cast<double>(count());
  const Estimate base = MeanOf(nll_base_), test = MeanOf(nll_test_);
  const double covariance = n < 10 ? 0 : (nll_products_ / n - base.value * test.value) / (n - 1);
  const double variance = base.error * base.error + test.error * test.error - 2 * covariance;
  return {test.value - base.value, std::sqrt(std::max(0.0, variance))};
}

Estimate KldStatistics::PerplexityRatio() const {
  const Estimate log = LogPerplexityRatio();
  return {std::exp(log.value), std::exp(log.value) * log.error};
}

Estimate KldStatistics::RmsProbabilityChange() const {
  const Estimate square = MeanOf(change2_);
  const double rms = std::sqrt(square.value);
  return {rms, rms > 0 ? 0.5 / rms * square.error : 0};
}

}  // namespace bitshard
