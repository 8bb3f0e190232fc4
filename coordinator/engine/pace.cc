#include "coordinator/engine/pace.h"

#include <algorithm>

namespace bitshard {

Pace::Pace(absl::Duration itl_slo) : itl_slo_(absl::ToDoubleSeconds(itl_slo)) {
  if (itl_slo <= absl::ZeroDuration() || itl_slo == absl::InfiniteDuration()) return;
  limit_ = [this](const StepLoad& load, uint32_t start) {
    return model_.PrefillWithin(itl_slo_, load, start);
  };
}

void Pace::StepEnded(const StepLoad& load, absl::Duration execution, uint32_t outputs,
                     absl::Time now) {
  const double seconds = absl::ToDoubleSeconds(execution);
  model_.Observe(load, seconds);
  last_decodes_.decode_rows = load.decode_rows;
  if (load.decode_rows > 0) {
    decode_step_seconds_.Add(seconds);
    if (load.prefill_tokens == 0) last_decodes_.context_tokens = load.context_tokens;
  } else {
    last_decodes_.context_tokens = 0;
  }
  if (load.prefill_tokens > 0) prompt_rate_.Add(load.prefill_tokens, now);
  if (outputs > 0) output_rate_.Add(outputs, now);
}

void Pace::RequestEnded(std::optional<uint32_t> outputs, absl::Time now) {
  if (outputs.has_value()) outputs_.Add(*outputs);
  request_rate_.Add(1, now);
}

ServiceRates Pace::Rates(uint32_t token_budget) const {
  ServiceRates rates;
  rates.decode_step_seconds = decode_step_seconds_.value();
  rates.outputs = outputs_.value();
  if (given_tokens_.value() > 0) rates.cached_part = cached_tokens_.value() / given_tokens_.value();
  if (!model_.knows_prefill()) return rates;
  StepLoad step = last_decodes_;
  uint32_t chunk = token_budget - std::min(token_budget - 1, step.decode_rows);
  if (limit_ && step.decode_rows > 0)
    chunk = std::min(chunk, model_.PrefillWithin(itl_slo_, step, /*start=*/0));
  step.prefill_tokens = chunk;
  // As prompts of the usual length: one as long as the chunk would have far more context.
  const uint32_t prompt =
      std::max(uint32_t{1}, std::min(chunk, static_cast<uint32_t>(given_tokens_.value())));
  step.context_tokens +=
      chunk / prompt * StepLoad::ContextOf(0, prompt) + StepLoad::ContextOf(0, chunk % prompt);
  rates.prefill_token_seconds = model_.Expected(step) / chunk;
  return rates;
}

void Pace::FillStats(uint32_t token_budget, EngineStats* stats) const {
  stats->rates = Rates(token_budget);
  stats->prompt_rate = prompt_rate_;
  stats->output_rate = output_rate_;
  stats->request_rate = request_rate_;
}

}  // namespace bitshard
