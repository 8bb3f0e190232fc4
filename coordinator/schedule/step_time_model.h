// How long a step takes, fitted online to the steps that ran: seconds = a + b prefill tokens +
// c decode rows + d context tokens, none of them negative.
//
// Least squares with forgetting: the machine's speed drifts, and what a kernel costs changes with
// the model. Steps with and without prefill are forgotten apart, so that an hour of pure decoding
// does not wash out what is known of prefill. A step far off what was expected (a page fault, a
// neighbour on the machine) counts for little; when all steps are, the model follows within some
// tens of them.
//
// Pure; owned by the engine thread. Observe and PrefillWithin take about a microsecond.
#pragma once

#include <array>
#include <cstdint>

#include "coordinator/schedule/step_load.h"

namespace bitshard {

class StepTimeModel {
 public:
  // Prefill goes on with so many tokens a step, whatever it costs.
  static constexpr uint32_t kLeastChunk = 16;
  // Until some steps with prefill have been seen.
  static constexpr uint32_t kCautiousChunk = 64;

  // Steps without work teach nothing and are left out.
  void Observe(const StepLoad& load, double seconds);

  // The expected time, and one that most steps of this load stay within.
  double Expected(const StepLoad& load) const;
  double MostlyWithin(const StepLoad& load) const {
    return Expected(load) * (1 + kMargin * spread_);
  }

  // How many tokens of prefill from `start` on a step of `load` may take on and still mostly end
  // within `seconds`. At least kLeastChunk while the load has no prefill.
  uint32_t PrefillWithin(double seconds, const StepLoad& load, uint32_t start) const;

  // A step with prefill has been seen.
  bool knows_prefill() const { return prefill_.count > 0; }

 private:
  static constexpr int kTerms = 4;
  static constexpr double kMargin = 2;  // x spread_
  using Terms = std::array<double, kTerms>;

  // Sums over the steps of a kind, older ones with less weight.
  struct Sums {
    std::array<Terms, kTerms> xx{};
    Terms xy{};
    uint64_t count = 0;
    void Add(const Terms& x, double y, double weight, double forget);
  };

  static Terms TermsOf(const StepLoad& load);
  void Fit();

  Sums decode_, prefill_;
  Terms factors_{};
  double spread_ = 0;  // mean distance of a step from what was expected, in relation; outliers cut
};

}  // namespace bitshard
