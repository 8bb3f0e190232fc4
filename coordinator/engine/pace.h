// How fast the engine runs, as it measures itself: for the bound on steps that hold decodes, the
// prediction of waits, and the rates that operators see.
//
// Owned by the engine thread.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

#include "coordinator/engine/engine_stats.h"
#include "coordinator/engine/wait_predictor.h"
#include "coordinator/schedule/step_load.h"
#include "coordinator/schedule/step_time_model.h"

namespace bitshard {

class Pace {
 public:
  // `itl_slo`: see Engine::Options.
  explicit Pace(absl::Duration itl_slo);
  Pace(const Pace&) = delete;
  Pace& operator=(const Pace&) = delete;

  // A step of `load` has run for `execution` and brought `outputs` tokens.
  void StepEnded(const StepLoad& load, absl::Duration execution, uint32_t outputs, absl::Time now);
  // A request entered with `given` tokens, `cached` of them from the prefix cache.
  void Entered(uint32_t given, uint32_t cached) {
    given_tokens_.Add(given);
    cached_tokens_.Add(cached);
  }
  // A choice of a request ended well, others go on.
  void ChoiceEnded(uint32_t outputs) { outputs_.Add(outputs); }
  // A request ended; `outputs`: well, its last choice with so many outputs.
  void RequestEnded(std::optional<uint32_t> outputs, absl::Time now);

  // For Scheduler::Schedule; null without a bound.
  const PrefillLimit* limit() const { return limit_ ? &limit_ : nullptr; }
  // `token_budget`: of a step.
  ServiceRates Rates(uint32_t token_budget) const;
  // The rates of EngineStats.
  void FillStats(uint32_t token_budget, EngineStats* stats) const;
  const StepTimeModel& model() const { return model_; }

 private:
  const double itl_slo_;  // seconds
  StepTimeModel model_;
  PrefillLimit limit_;
  StepLoad last_decodes_;  // of the last step that held decodes, without its prefill
  RecentMean decode_step_seconds_{32}, outputs_{64}, given_tokens_{64}, cached_tokens_{64};
  RecentRate prompt_rate_, output_rate_, request_rate_;
};

}  // namespace bitshard
