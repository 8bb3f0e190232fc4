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
#include "worker/sample/logit_edits.h"
#include "worker/sample/mass.h"
#include "worker/sample/sampler.h"

namespace bitshard {

// The logits after a row's edits, token by token as logit_edits.h defines them.
inline std::vector<float> ReferenceEdited(const std::vector<float>& logits, const LogitEdits& e) {
  constexpr float kMost = std::numeric_limits<float>::max();
  const auto finite = [=](float x) { return std::min(std::max(x, -kMost), kMost); };
  std::vector<float> edited = logits;
  for (size_t i = 0; i < edited.size(); ++i) {
    const int32_t token = static_cast<int32_t>(i);
    const auto times = std::count(e.output.begin(), e.output.end(), token);
    const bool in_prompt = std::count(e.prompt.begin(), e.prompt.end(), token) > 0;
    float& x = edited[i];
    if ((times > 0 || in_prompt) && e.repetition != 1) {
      x = finite(x > 0 ? x / e.repetition : x * e.repetition);
    }
    if (times > 0) {
      const float frequency = e.frequency * static_cast<float>(times);
      x = finite(x - frequency);
      x = finite(x - e.presence);
    }
    for (const TokenBias& bias : e.biases) {
      if (bias.token == i) x = finite(x + bias.bias);
    }
    const auto allows = [&](absl::string_view mask) {
      return mask.empty() || (static_cast<uint8_t>(mask[i / 8]) & (1 << (i % 8))) != 0;
    };
    if (!allows(e.allowed) || !allows(e.mask) ||
        std::count(e.forbidden.begin(), e.forbidden.end(), i) > 0) {
      x = -std::numeric_limits<float>::infinity();
    }
  }
  return edited;
}

// Token ids by logit descending, id ascending; without masked ones.
inline std::vector<uint32_t> ReferenceOrder(const std::vector<float>& logits) {
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::erase_if(order,
                [&](uint32_t i) { return logits[i] == -std::numeric_limits<float>::infinity(); });
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  return order;
}

// The tokens that may be drawn, best first. REQUIRES: temperature > 0, logits edited and finite, or
// masked.
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
  const std::vector<float> edited =
      row.edits == nullptr ? logits : ReferenceEdited(logits, *row.edits);
  const std::vector<uint32_t> allowed = ReferenceOrder(edited);
  out.none_allowed = allowed.empty();
  if (out.none_allowed) return out;

  if (p.temperature <= 0) {
    out.token = allowed[0];
  } else {
    double best = -std::numeric_limits<double>::infinity();
    std::vector<uint32_t> kept = ReferenceKept(edited, p);
    std::sort(kept.begin(), kept.end());  // ties of the score go to the lowest id
    const NoiseKey noise{p.seed, row.position, p.choice};
    for (uint32_t i : kept) {
      const double score = edited[i] / static_cast<double>(p.temperature) + Gumbel(noise, i);
      if (score > best) {
        best = score;
        out.token = i;
      }
    }
  }
  if (!p.want_logprob && p.top_logprobs == 0) return out;

  const std::vector<uint32_t> order = ReferenceOrder(logits);
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
