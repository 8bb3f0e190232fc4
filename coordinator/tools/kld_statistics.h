// How far one model's next-token distributions are from another's, over many positions of a text:
// the figures of llama-perplexity --kl-divergence.
//
// Two ways to count. kExact takes both rows as they are, in double. kLlamaCpp does what
// llama-perplexity does with the base: its log-probabilities go through 16 bits (steps of 1/65535
// of the range from the maximum down to 16 below it, or to the least logit), and what lies below
// e^-16 adds nothing to the divergence. The two differ in the fourth digit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace bitshard {

// A mean and its standard error.
struct Estimate {
  double value = 0, error = 0;
};

class KldStatistics {
 public:
  enum class Rule { kExact, kLlamaCpp };
  explicit KldStatistics(Rule rule) : rule_(rule) {}

  // One position: the logits of both models over the whole vocabulary, and the token that follows
  // in the text. REQUIRES: base.size() == test.size(), token < size, all finite.
  void Add(absl::Span<const float> base, absl::Span<const float> test, uint32_t token);

  size_t count() const { return klds_.size(); }
  Estimate MeanKld() const;
  // 0 = the least, 1 = the greatest; between two values in proportion. REQUIRES: count() > 0.
  double KldQuantile(double fraction) const;
  // Share of positions where both have the same most probable token (the lowest id among equals).
  Estimate SameTop() const;
  Estimate PerplexityBase() const;
  Estimate PerplexityTest() const;
  // ln(PPL(test) / PPL(base)); its error counts that both see the same text.
  Estimate LogPerplexityRatio() const;
  Estimate PerplexityRatio() const;
  // Root mean square of p(token) under the test minus that under the base.
  Estimate RmsProbabilityChange() const;

 private:
  // Sums of x and x^2.
  struct Moments {
    double sum = 0, sum2 = 0;
    void Add(double x) {
      sum += x;
      sum2 += x * x;
    }
  };
  Estimate MeanOf(const Moments& moments) const;

  const Rule rule_;
  std::vector<double> klds_;
  Moments kld_, nll_base_, nll_test_, change2_;
  double nll_products_ = 0;
  size_t same_top_ = 0;
  std::vector<float> base_log_probs_;  // of the row at hand
};

}  // namespace bitshard
