// What is drawn against the exact distribution: Pearson's statistic of many draws with fixed seeds.
// The same draws every time, so a test here either holds or does not.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/worker/sample/sampler_group.h"

namespace bitshard {
namespace {

// `draws` draws at successive positions.
void ExpectDistribution(const std::vector<float>& x, const SampleParams& params,
                        const std::string& name, int draws, const LogitEdits* edits = nullptr) {
  constexpr int kBatch = 500;
  const uint32_t vocab = static_cast<uint32_t>(x.size());
  Group group(vocab, {{0, 64}, {64, vocab - 64}}, kBatch);
  std::vector<int> seen(vocab, 0);
  for (int at = 0; at < draws; at += kBatch) {
    std::vector<SampleRow> rows(kBatch);
    for (int i = 0; i < kBatch; ++i) {
      rows[i].params = params;
      rows[i].position = static_cast<uint64_t>(at + i);
      rows[i].edits = edits;
    }
    for (const SampleOutput& out : group.Sample(Rows(kBatch, x), rows)) {
      ASSERT_LT(out.token, vocab) << name;
      ++seen[out.token];
    }
  }
  const std::vector<float> edited = edits == nullptr ? x : ReferenceEdited(x, *edits);
  std::vector<double> p(vocab, 0);
  double total = 0;
  for (uint32_t i : ReferenceKept(edited, params))
    total += p[i] = std::exp(static_cast<double>(edited[i]) / params.temperature);
  double statistic = 0, rest_seen = 0, rest_expected = 0;
  int cells = 0;
  for (uint32_t i = 0; i < vocab; ++i) {
    const double expected = draws * p[i] / total;
    if (p[i] == 0) {
      EXPECT_EQ(seen[i], 0) << name << ": token " << i << " is not among the kept";
    } else if (expected < 10) {
      rest_seen += seen[i];
      rest_expected += expected;
    } else {
      statistic += (seen[i] - expected) * (seen[i] - expected) / expected;
      ++cells;
    }
  }
  if (rest_expected > 0) {
    statistic +=
        (rest_seen - rest_expected) * (rest_seen - rest_expected) / std::max(rest_expected, 1.0);
    ++cells;
  }
  ASSERT_GT(cells, 1) << name;
  // Mean cells - 1, variance 2 (cells - 1). 4 sigma.
  EXPECT_LT(statistic, cells - 1 + 4 * std::sqrt(2.0 * cells)) << name;
  EXPECT_GT(statistic, cells - 1 - 4 * std::sqrt(2.0 * cells)) << name;
}

std::vector<float> Normal(uint64_t seed, size_t vocab, float spread) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(vocab);
  for (float& v : x) v = spread * normal(random);
  return x;
}

TEST(Distribution, OfTemperatureAndFilters) {
  const std::vector<float> x = Normal(21, 192, 1.5f);
  ExpectDistribution(x, {.temperature = 1, .seed = 1}, "plain", 100'000);
  ExpectDistribution(x, {.temperature = 0.7f, .top_p = 0.9f, .seed = 2}, "temperature and top_p",
                     30'000);
  ExpectDistribution(x, {.temperature = 1.5f, .top_k = 150, .seed = 3, .choice = 1},
                     "top_k beyond the candidates", 20'000);
  ExpectDistribution(x, {.temperature = 1, .min_p = 0.02f, .seed = 4}, "min_p", 30'000);
  ExpectDistribution(x, {.temperature = 1, .top_k = 20, .top_p = 0.8f, .min_p = 0.01f, .seed = 5},
                     "all filters", 20'000);
}

TEST(Distribution, OfFlatRowsTiesAndTopPNearOne) {
  ExpectDistribution(std::vector<float>(192, 3.5f), {.temperature = 1, .seed = 6}, "flat", 20'000);
  // Two of three tokens, the lowest ids.
  ExpectDistribution(std::vector<float>(192, 0.0f),
                     {.temperature = 1, .top_p = 0.6666666f, .seed = 7}, "flat, cut by top_p",
                     15'000);
  ExpectDistribution(std::vector<float>(192, 0.0f), {.temperature = 1, .top_k = 150, .seed = 8},
                     "flat, cut by top_k", 15'000);
  std::vector<float> few(192);
  for (size_t i = 0; i < few.size(); ++i) few[i] = static_cast<float>(i % 3);
  ExpectDistribution(few, {.temperature = 1, .top_p = 0.8f, .seed = 9}, "ties, cut by top_p",
                     15'000);
  const std::vector<float> x = Normal(22, 192, 1.5f);
  ExpectDistribution(x, {.temperature = 1, .top_p = 0.99999994f, .seed = 10}, "top_p near 1",
                     20'000);
  ExpectDistribution(x, {.temperature = 1, .top_p = 0.999f, .seed = 11}, "top_p 0.999", 20'000);
}

TEST(Distribution, OfEditedLogits) {
  const std::vector<float> x = Normal(23, 192, 1.5f);
  EditedRow penalties;
  penalties.prompt = {1, 2, 3, 100, 101};
  penalties.output = {3, 3, 3, 64, 190, 190, 7};
  penalties.edits.repetition = 1.3f;
  penalties.edits.frequency = 0.4f;
  penalties.edits.presence = 0.6f;
  penalties.biases = {{0, 2.0f}, {63, -1.5f}, {64, 3.0f}, {191, 1.0f}};
  penalties.View();
  ExpectDistribution(x, {.temperature = 1, .seed = 12}, "penalties and biases", 50'000,
                     &penalties.edits);
  ExpectDistribution(x, {.temperature = 0.8f, .top_p = 0.9f, .seed = 13},
                     "penalties, biases and top_p", 30'000, &penalties.edits);

  EditedRow masked = penalties;
  masked.allowed = MakeTokenMask(192, /*allowed=*/false);
  for (uint32_t i = 0; i < 192; i += 3) AllowToken(i, &masked.allowed);
  masked.forbidden = {0, 3};
  masked.View();
  ExpectDistribution(x, {.temperature = 1, .seed = 14}, "masks", 30'000, &masked.edits);
  ExpectDistribution(x, {.temperature = 1, .top_k = 150, .seed = 15},
                     "masks and a top_k beyond what they leave", 20'000, &masked.edits);
  ExpectDistribution(x, {.temperature = 1, .min_p = 0.05f, .seed = 16}, "masks and min_p", 20'000,
                     &masked.edits);
}

}  // namespace
}  // namespace bitshard
