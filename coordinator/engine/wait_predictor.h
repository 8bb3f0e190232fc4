// How long a request would wait for its first step: from what the engine was measured to do lately
// and from what is in front of it.
//
// Two things hold a request up, and the longer one counts. Prompts in front have to be computed:
// their tokens, at the time that the fitted model (step_time_model.h) gives a token in full steps
// beside the running decodes. And places have to come free, when all are taken: the running
// requests end one by one, each after as many steps as requests had outputs lately. What has not
// been measured yet counts as no wait: better to take a request too many than to refuse one on a
// guess.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace bitshard {

// 0 = not measured.
struct ServiceRates {
  double prefill_token_seconds = 0;  // of a prompt token, in steps as full as may be
  double decode_step_seconds = 0;    // of a step that holds decodes
  double outputs = 0;                // of a request that ends
};

struct QueueAhead {
  uint64_t requests = 0;       // served before
  uint64_t prompt_tokens = 0;  // of theirs, and of running ones that are not computed yet
  uint32_t running = 0;
  uint32_t places = 0;   // for running ones, all
  bool blocked = false;  // places are left, but the KV cache has no room
};

absl::Duration PredictWait(const ServiceRates& rates, const QueueAhead& ahead);

// A rate per second over about the last 10 s, and when that was so.
class RecentRate {
 public:
  void Add(uint64_t count, absl::Time now);
  // Falls when nothing is added.
  double At(absl::Time now) const;

 private:
  double weighted_ = 0;  // the count, older ones with less weight
  absl::Time last_ = absl::InfinitePast(), first_ = absl::InfinitePast();
};

// Means over about the last so many observations; the first ones count alike.
class RecentMean {
 public:
  explicit RecentMean(double memory) : memory_(memory) {}
  void Add(double value);
  double value() const { return mean_; }

 private:
  const double memory_;
  double mean_ = 0, count_ = 0;
};

}  // namespace bitshard
