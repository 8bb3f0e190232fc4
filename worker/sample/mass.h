// Probabilities as integers: exp of something <= 0, times 2^40, rounded. Their sums are exact, so
// no cut of the vocabulary and no order of summation can change what top-p keeps or which
// log-probability is reported.
#pragma once

#include <cstdint>

#include "kernels/base/math.h"

namespace bitshard {

inline constexpr double kMassScale = 0x1p40;
// exp(t) 2^40 + 0.5 < 1 below: no mass, whether exp is asked or not.
inline constexpr float kNoMassBelow = -28.5f;

inline int64_t ScaleMass(float value) {
  return static_cast<int64_t>(static_cast<double>(value) * kMassScale + 0.5);
}

// The exponent of a token's unnormalised probability, <= 0: every rank rounds it alike because all
// know the maximum. Monotone in the logit, so what a threshold on it keeps is a prefix of the token
// order.
inline float Exponent(float logit, float max, float temperature) {
  return (logit - max) / temperature;
}

inline int64_t MassOfExponent(float t) { return t < kNoMassBelow ? 0 : ScaleMass(ExpF32(t)); }

// The reported log-probability, of the raw logits. `raw_sum`: sum over the vocabulary of exp(logit
// - max), as mass.
inline float LogProbability(float logit, float max, int64_t raw_sum) {
  return static_cast<float>(static_cast<double>(logit) - static_cast<double>(max) -
                            Log(static_cast<double>(raw_sum) * (1.0 / kMassScale)));
}

}  // namespace bitshard
