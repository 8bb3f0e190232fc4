// How one token is drawn; the plain form of internal::SamplingParams.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "proto/plan.pb.h"

namespace bitshard {

inline constexpr int kMaxTopLogprobs = 20;

struct SampleParams {
  float temperature = 0;  // 0 = greedy
  uint32_t top_k = 0;     // 0 = all
  float top_p = 1;        // 1 = all
  float min_p = 0;        // 0 = all
  uint64_t seed = 0;
  uint32_t choice = 0;
  uint32_t top_logprobs = 0;  // 0..kMaxTopLogprobs
  bool want_logprob = false;
};

// INVALID_ARGUMENT names the field that is out of its range and the range.
absl::StatusOr<SampleParams> SampleParamsOf(const internal::SamplingParams& proto);

}  // namespace bitshard
