// How long a request would wait for its first step: from what the engine was measured to do lately
// and from what is in front of it.
//
// Two things hold a request up, and the longer one counts. Prompts in front have to be computed:
// their tokens but for the part that the prefix cache brought of prompts lately, at the time that
// the fitted model (step_time_model.h) gives a token in full steps beside the running decodes. And
// places have to come free, when all are taken: the running requests end one by one, each after as
// many steps as requests had outputs lately. What has not been measured yet counts as no wait:
// better to take a request too many than to refuse one on a guess.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace bitshard {

// 0 = not measured.
struct ServiceRates {
  double prefill_token_seconds = 0;  // of a prompt token, in steps as full as may be
  double decode_step_seconds = 0;    // of a step that holds decodes
  double outputs = 0;                // of a request that ends
  double cached_part = 0;            // of prompt tokens: those that the prefix cache brought
};

struct QueueAhead {
  uint64_t requests = 0;           // served before
  uint64_t prompt_tokens = 0;      // of theirs
  uint64_t uncomputed_tokens = 0;  // of running ones, as far as they are computed before
  uint32_t running = 0;
  uint32_t places = 0;   // for running ones, all
  bool blocked = false;  // places are left, but the KV cache has no room
};

absl::Duration PredictWait(const ServiceRates& rates, const QueueAhead& ahead);

// How much longer than predicted waits turn out: a prediction is a mean, and times factor() nearly
// all waits stay within it. From the last kMemory waits; 1 until kLeast are known. Long waits come
// in heaps, when long requests hold the places: hence the long memory, and a rank far beyond the
// one in a hundred that is meant.
class WaitError {
 public:
  static constexpr size_t kMemory = 1024, kLeast = 16;
  static constexpr size_t kBeyond = 256;  // one in so many of them was longer
  static constexpr double kMost = 8;      // of the factor: one stall must not close the door

  // REQUIRES: predicted > 0.
  void Add(absl::Duration predicted, absl::Duration waited);
  double factor() const { return factor_; }

 private:
  static constexpr size_t kEvery = 16;  // waits without a surprise count together

  std::vector<double> ratios_, sorted_;
  size_t next_ = 0;   // to be replaced
  size_t since_ = 0;  // that are not in factor_ yet
  double factor_ = 1;
};

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
