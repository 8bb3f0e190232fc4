// The sampler's definition in plain code: one row, the whole vocabulary in one place, everything
// sorted. Shares with the real one only the noise, the integer masses and our exp and log (which
// have tests of their own).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/base/math.h"
#include "worker/sample/gumbel.h"
#include "worker/sample/mass.h"
#include "worker/sample/sampler.h"

namespace bitshard {

// Token ids by logit descending, id ascending.
inline std::vector<uint32_t> ReferenceOrder(const std::vector<float>& logits) {
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  return order;
}

// The tokens that may be drawn, best first. REQUIRES: temperature > 0, logits finite.
inline std::vector<uint32_t> ReferenceKept(const std::vector<float>& logits,
                                           const SampleParams& p) {
  std::vector<uint32_t> kept = ReferenceOrder(logits);
  const float max = logits[kept[0]];
  const auto exponent = [&](uint32_t i) { return Exponent(logits[i], max, p.temperature); };
  if (p.min_p > 0) {
    const float floor = static_cast<float>(Log(p.min_p));
    std::erase_if(kept, [&](uint32_t i) { return exponent(i) < floor; });
  }
  if (p.top_k > 0 && p.top_k < kept.size()) kept.resize(p.top_k);
  if (p.top_p < 1) {
    int64_t total = 0;
    for (uint32_t i : kept) total += MassOfExponent(exponent(i));
    const double target = std::ceil(static_cast<double>(p.top_p) * static_cast<double>(total));
    int64_t sum = 0;
    size_t n = 0;
    while (n == 0 || (n < kept.size() && static_cast<double>(sum) < target))
      sum += MassOfExponent(exponent(kept[n++]));
    kept.resize(n);
  }
  return kept;
}

// `logits`: [vocab_size], without padding.
inline SampleOutput ReferenceSample(const std::vector<float>& logits, const SampleRow& row) {
  SampleOutput out;
  const SampleParams& p = row.params;
  for (float x : logits) out.non_finite |= !std::isfinite(x);
  if (out.non_finite) return out;
  const std::vector<uint32_t> order = ReferenceOrder(logits);

  if (p.temperature <= 0) {
    out.token = order[0];
  } else {
    double best = -std::numeric_limits<double>::infinity();
    std::vector<uint32_t> kept = ReferenceKept(logits, p);
    std::sort(kept.begin(), kept.end());  // ties of the score go to the lowest id
    const NoiseKey noise{p.seed, row.position, p.choice};
    for (uint32_t i : kept) {
      const double score = logits[i] / static_cast<double>(p.temperature) + Gumbel(noise, i);
      if (score > best) {
        best = score;
        out.token = i;
      }
    }
  }
  if (!p.want_logprob && p.top_logprobs == 0) return out;

  const float max = logits[order[0]];
  int64_t sum = 0;
  for (size_t unit = 0; unit < logits.size(); unit += 64) {
    float lanes[16] = {};
    for (size_t i = unit; i < std::min(logits.size(), unit + 64); ++i)
      lanes[i % 16] += ExpF32(logits[i] - max);
    for (int half : {8, 4, 2, 1}) {
      for (int j = 0; j < half; ++j) lanes[j] += lanes[j + half];
    }
    sum += ScaleMass(lanes[0]);
  }
  out.logprob = LogProbability(logits[out.token], max, sum);
  out.n_top = static_cast<int>(std::min<size_t>(p.top_logprobs, order.size()));
  for (int j = 0; j < out.n_top; ++j)
    out.top[j] = {order[j], LogProbability(logits[order[j]], max, sum)};
  return out;
}

}  // namespace bitshard
