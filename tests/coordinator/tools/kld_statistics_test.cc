// The figures of `bitshard eval kld` against sums written out by hand, and the rule of
// llama-perplexity against its limits.
#include "coordinator/tools/kld_statistics.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace bitshard {
namespace {

std::vector<double> LogSoftmax(const std::vector<float>& logits) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  std::vector<double> out;
  for (const float x : logits) out.push_back(x - std::log(sum));
  return out;
}

TEST(KldStatistics, EqualRowsHaveNoDivergenceAndTheSamePerplexity) {
  KldStatistics s(KldStatistics::Rule::kExact);
  const std::vector<float> row = {0.5f, -1, 3, 2.5f};
  for (uint32_t token = 0; token < 4; ++token) s.Add(row, row, token);
  EXPECT_EQ(s.MeanKld().value, 0);
  EXPECT_EQ(s.KldQuantile(1), 0);
  EXPECT_EQ(s.SameTop().value, 1);
  EXPECT_EQ(s.PerplexityBase().value, s.PerplexityTest().value);
  EXPECT_EQ(s.LogPerplexityRatio().value, 0);
  EXPECT_EQ(s.RmsProbabilityChange().value, 0);
}

TEST(KldStatistics, FiguresAreThoseOfTheDefinitions) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 2);
  constexpr size_t kVocab = 50, kRows = 40;
  KldStatistics s(KldStatistics::Rule::kExact);
  double kld_sum = 0, kld_sum2 = 0, nll_base = 0, nll_test = 0, most = 0, change2 = 0;
  std::vector<double> ratios;
  int same = 0;
  for (size_t r = 0; r < kRows; ++r) {
    std::vector<float> base(kVocab), test(kVocab);
    for (size_t i = 0; i < kVocab; ++i) {
      base[i] = normal(random);
      test[i] = base[i] + 0.2f * normal(random);
    }
    const uint32_t token = static_cast<uint32_t>(random() % kVocab);
    s.Add(base, test, token);
    const std::vector<double> p = LogSoftmax(base), q = LogSoftmax(test);
    double kld = 0;
    for (size_t i = 0; i < kVocab; ++i) kld += std::exp(p[i]) * (p[i] - q[i]);
    kld_sum += kld;
    kld_sum2 += kld * kld;
    most = std::max(most, kld);
    nll_base -= p[token];
    nll_test -= q[token];
    ratios.push_back(p[token] - q[token]);
    change2 += std::pow(std::exp(q[token]) - std::exp(p[token]), 2);
    same += std::max_element(p.begin(), p.end()) - p.begin() ==
            std::max_element(q.begin(), q.end()) - q.begin();
  }
  const double n = kRows, mean = kld_sum / n;
  EXPECT_NEAR(s.MeanKld().value, mean, 1e-9);
  EXPECT_NEAR(s.MeanKld().error, std::sqrt((kld_sum2 / n - mean * mean) / (n - 1)), 1e-9);
  EXPECT_NEAR(s.KldQuantile(1), most, 1e-9);
  EXPECT_NEAR(s.PerplexityBase().value, std::exp(nll_base / n), 1e-6);
  EXPECT_NEAR(s.PerplexityTest().value, std::exp(nll_test / n), 1e-6);
  EXPECT_NEAR(s.PerplexityRatio().value, std::exp((nll_test - nll_base) / n), 1e-9);
  EXPECT_NEAR(s.SameTop().value, same / n, 1e-12);
  EXPECT_NEAR(s.RmsProbabilityChange().value, std::sqrt(change2 / n), 1e-9);
  // The ratio's error is that of the paired differences.
  double sum = 0, sum2 = 0;
  for (const double x : ratios) {
    sum += x;
    sum2 += x * x;
  }
  EXPECT_NEAR(s.LogPerplexityRatio().error, std::sqrt((sum2 / n - sum / n * sum / n) / (n - 1)),
              1e-9);
}

TEST(KldStatistics, QuantilesLieBetweenNeighbours) {
  KldStatistics s(KldStatistics::Rule::kExact);
  std::vector<double> klds;
  for (const float shift : {3.0f, 1.0f, 0.0f, 2.0f, 4.0f}) {
    const std::vector<float> base = {0, 0}, test = {0, shift};
    s.Add(base, test, 0);
    klds.push_back(-std::log(2.0) - 0.5 * shift + std::log(1 + std::exp(double{shift})));
  }
  std::sort(klds.begin(), klds.end());
  EXPECT_NEAR(s.KldQuantile(0), klds[0], 1e-12);
  EXPECT_NEAR(s.KldQuantile(0.5), klds[2], 1e-12);
  EXPECT_NEAR(s.KldQuantile(0.625), 0.5 * (klds[2] + klds[3]), 1e-12);
  EXPECT_NEAR(s.KldQuantile(1), klds[4], 1e-12);
}

TEST(KldStatistics, LlamaCppsRuleRoundsTheBaseAndLeavesTheTailOut) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> base(2000), test(2000);
  for (size_t i = 0; i < base.size(); ++i) {
    base[i] = normal(random);
    test[i] = base[i] + 0.3f * normal(random);
  }
  base[7] = test[7] = 12;
  KldStatistics exact(KldStatistics::Rule::kExact), rounded(KldStatistics::Rule::kLlamaCpp);
  exact.Add(base, test, 7);
  rounded.Add(base, test, 7);
  // 16 / 65535 is a step; a rounded log-probability is off by half of it.
  EXPECT_NEAR(rounded.MeanKld().value, exact.MeanKld().value, 1.3e-4);
  EXPECT_NE(rounded.MeanKld().value, exact.MeanKld().value);
  EXPECT_NEAR(std::log(rounded.PerplexityBase().value), std::log(exact.PerplexityBase().value),
              1.3e-4);
  EXPECT_NEAR(rounded.PerplexityTest().value, exact.PerplexityTest().value, 1e-6);

  // All the test's mass on what the base gives e^-30: nothing of it counts.
  const std::vector<float> sure = {0, -30}, other = {0, 5};
  KldStatistics cut(KldStatistics::Rule::kLlamaCpp);
  cut.Add(sure, other, 0);
  EXPECT_NEAR(cut.MeanKld().value, std::log(1 + std::exp(5.0)), 1e-4);
}

}  // namespace
}  // namespace bitshard
