#include "worker/step/step_batch.h"

#include <algorithm>
#include <bit>

#include "worker/step/agreement.h"

namespace bitshard {
namespace {

constexpr int32_t kFiller = 0;  // where a token will be, or would have been

// The row completes its sequence's vector.
bool Embeds(const internal::StepPlan& plan, int row, const Slot& slot) {
  return (plan.flags(row) & internal::ROW_POOL) != 0 &&
         plan.start(row) + plan.n_tokens(row) == slot.tokens.size();
}

}  // namespace

StepBatch::StepBatch(const SlotLimits& limits, bool score_last) : score_last_(score_last) {
  tokens_.reserve(limits.max_step_tokens);
  positions_.reserve(limits.max_step_tokens);
  poisoned_.reserve(limits.max_step_tokens);
  score_runs_.reserve(limits.max_slots);
  scored_.reserve(limits.max_step_tokens);
  score_rows_.reserve(limits.max_step_tokens);
  scores_.resize(limits.max_step_tokens);
  rows_.reserve(limits.max_slots);
  const size_t outputs = std::min(limits.max_slots, limits.max_step_tokens);
  sampled_.reserve(outputs);
  sampled_plan_rows_.reserve(outputs);
  sample_slots_.reserve(outputs);
  sample_rows_.reserve(outputs);
  edits_.reserve(outputs);
  samples_.resize(outputs);
  output_flags_.resize(outputs);
}

void StepBatch::Fill(const internal::StepPlan& plan, SlotTable& slots) {
  tokens_.clear();
  positions_.clear();
  rows_.clear();
  score_runs_.clear();
  scored_.clear();
  score_rows_.clear();
  sampled_.clear();
  sampled_plan_rows_.clear();
  sample_slots_.clear();
  sample_rows_.clear();
  edits_.clear();
  pools_ = false;
  int next_mask = 0;
  for (int r = 0; r < plan.slot_size(); ++r) {
    Slot& slot = slots.slot(plan.slot(r));
    const uint32_t begin = plan.start(r), end = begin + plan.n_tokens(r);
    AttentionRow row;
    row.blocks = slot.blocks.data();
    row.start = begin;
    row.tokens = end - begin;
    row.first_row = static_cast<int64_t>(tokens_.size());
    rows_.push_back(row);
    tokens_.insert(tokens_.end(), slot.tokens.begin() + begin, slot.tokens.begin() + end);
    for (uint32_t p = begin; p < end; ++p) positions_.push_back(static_cast<int32_t>(p));

    if ((plan.flags(r) & internal::ROW_SAMPLE) != 0) {
      sampled_.push_back(static_cast<int32_t>(tokens_.size()) - 1);
      sampled_plan_rows_.push_back(r);
      sample_slots_.push_back(plan.slot(r));
      SampleRow& sample = sample_rows_.emplace_back();
      sample.params = slot.sampling;
      sample.position = end;
      const bool masked = (plan.flags(r) & internal::ROW_MASKED) != 0;
      if (masked || slot.edits.ApplyAfter(slot.tokens.size() - slot.n_prompt)) {
        absl::string_view mask;
        if (masked) mask = plan.masks(next_mask++);
        sample.edits = &edits_.emplace_back(slot.edits.Edits(slot.tokens, slot.n_prompt, mask));
      }
    }
    if ((plan.flags(r) & internal::ROW_SCORE) != 0) ListScored(plan, r, slot);
    if ((plan.flags(r) & internal::ROW_POOL) != 0) pools_ = true;
    if ((plan.flags(r) & internal::ROW_SAMPLE) != 0) slot.tokens.push_back(kFiller);
  }
  poisoned_.assign(tokens_.size(), 0);
}

void StepBatch::TakeTokens(const internal::StepPlan& plan, const SlotTable& slots) {
  auto to = tokens_.begin();
  for (int r = 0; r < plan.slot_size(); ++r) {
    const auto begin = slots.slot(plan.slot(r)).tokens.begin() + plan.start(r);
    to = std::copy_n(begin, plan.n_tokens(r), to);
  }
}

void StepBatch::ListScored(const internal::StepPlan& plan, int row, const Slot& slot) {
  const uint32_t begin = plan.start(row), end = begin + plan.n_tokens(row);
  const uint32_t known = static_cast<uint32_t>(slot.tokens.size());
  ScoreRun run;
  run.plan_row = row;
  run.first = std::max(begin + 1, slot.score_from);
  run.begin = scored_.size();
  for (uint32_t p = std::max(begin, slot.score_from - 1); p < end; ++p) {
    const bool last = p + 1 == known;
    // The last token of a sampling row has its logits anyway.
    if (last && (!score_last_ || (plan.flags(row) & internal::ROW_SAMPLE) != 0)) break;
    scored_.push_back({.slot = plan.slot(row),
                       .position = p,
                       .row = rows_[static_cast<size_t>(row)].first_row + (p - begin)});
    SampleRow score;
    score.params.top_logprobs = slot.sampling.top_logprobs;
    score.position = p + 1;
    if (!last) score.target = static_cast<uint32_t>(slot.tokens[p + 1]);
    score_rows_.push_back(score);
  }
  run.end = scored_.size();
  score_runs_.push_back(run);
}

StepState StepBatch::State() {
  StepState state;
  state.tokens = tokens_;
  state.positions = positions_;
  state.rows = rows_;
  state.sampled = sampled_;
  state.sample_slots = sample_slots_;
  state.sample_rows = sample_rows_;
  state.samples = absl::MakeSpan(samples_.data(), sampled_.size());
  state.scored = scored_;
  state.score_rows = score_rows_;
  state.scores = absl::MakeSpan(scores_.data(), scored_.size());
  state.poisoned = absl::MakeSpan(poisoned_);
  state.reads_hidden = pools_;
  return state;
}

void StepBatch::Pool(const internal::StepPlan& plan, const float* hidden, SlotTable& slots) {
  const size_t width = slots.limits().hidden_size;
  for (int r = 0; r < plan.slot_size(); ++r) {
    if ((plan.flags(r) & internal::ROW_POOL) == 0) continue;
    PooledVector& pooled = slots.slot(plan.slot(r)).pooled;
    const size_t first = static_cast<size_t>(rows_[static_cast<size_t>(r)].first_row);
    pooled.Add(hidden + first * width, plan.n_tokens(r));
    if (!pooled.Finite()) poisoned_[first] = 1;
  }
}

void StepBatch::Finish(const internal::StepPlan& plan, SlotTable& slots,
                       internal::StepResult& result, std::vector<uint32_t>& drawn) {
  drawn.clear();
  for (int r = 0; r < plan.slot_size(); ++r) {
    const auto first = poisoned_.begin() + rows_[static_cast<size_t>(r)].first_row;
    if (std::none_of(first, first + plan.n_tokens(r), [](uint8_t p) { return p != 0; })) continue;
    Slot& slot = slots.slot(plan.slot(r));
    slot.poisoned = true;
    if ((plan.flags(r) & (internal::ROW_SAMPLE | internal::ROW_SCORE)) != 0) continue;
    if (Embeds(plan, r, slot)) continue;
    // A row that brings nothing says so at once: others may be about to read what it wrote.
    internal::StepOutput& out = *result.add_outputs();
    out.set_slot(plan.slot(r));
    out.set_slot_gen(plan.slot_gen(r));
    out.set_output_index(plan.output_index(r));
    out.set_flags(internal::OUTPUT_NON_FINITE);
    drawn.push_back(out.flags());
  }
  for (const ScoreRun& run : score_runs_) {
    bool& poisoned = slots.slot(plan.slot(run.plan_row)).poisoned;
    for (size_t i = run.begin; i < run.end; ++i) poisoned |= scores_[i].non_finite;
  }
  for (size_t i = 0; i < sampled_.size(); ++i) {
    Slot& slot = slots.slot(sample_slots_[i]);
    const SampleOutput& sample = samples_[i];
    if (sample.non_finite) slot.poisoned = true;
    uint32_t flags = 0, token = kFiller;
    if (slot.poisoned) {
      flags = internal::OUTPUT_NON_FINITE;
    } else if (sample.none_allowed) {
      flags = internal::OUTPUT_NO_TOKEN_ALLOWED;
    } else {
      token = sample.token;
    }
    // Without a token the history goes on with the filler, because plans that are on their way
    // count on its length.
    slot.tokens[sample_rows_[i].position] = static_cast<int32_t>(token);
    output_flags_[i] = flags;
    drawn.push_back(token);
    drawn.push_back(flags);
  }
  for (const ScoreRun& run : score_runs_) {
    WriteScores(plan, slots, run, *result.add_scores(), drawn);
  }
  for (int r = 0; r < plan.slot_size(); ++r) {
    const Slot& slot = slots.slot(plan.slot(r));
    if (Embeds(plan, r, slot)) WriteEmbedding(plan, r, slot, *result.add_embeddings(), drawn);
  }
}

void StepBatch::WriteOutputs(const internal::StepPlan& plan, internal::StepResult& result) const {
  for (size_t i = 0; i < sampled_.size(); ++i) {
    const int r = sampled_plan_rows_[i];
    internal::StepOutput& out = *result.add_outputs();
    out.set_slot(plan.slot(r));
    out.set_slot_gen(plan.slot_gen(r));
    out.set_output_index(plan.output_index(r));
    out.set_flags(output_flags_[i]);
    if (output_flags_[i] == 0) Write(samples_[i], sample_rows_[i].params, out);
  }
}

void StepBatch::WriteEmbedding(const internal::StepPlan& plan, int row, const Slot& slot,
                               internal::StepEmbedding& out, std::vector<uint32_t>& drawn) {
  out.set_slot(plan.slot(row));
  out.set_slot_gen(plan.slot_gen(row));
  if (slot.poisoned) out.set_flags(internal::OUTPUT_NON_FINITE);
  drawn.push_back(out.flags());
  if (slot.poisoned) return;
  slot.pooled.Write(out.mutable_values());
  StableHash hash;
  for (const float value : out.values()) hash.Add(std::bit_cast<uint32_t>(value));
  drawn.push_back(static_cast<uint32_t>(hash.value()));
  drawn.push_back(static_cast<uint32_t>(hash.value() >> 32));
}

void StepBatch::WriteScores(const internal::StepPlan& plan, const SlotTable& slots,
                            const ScoreRun& run, internal::StepScores& out,
                            std::vector<uint32_t>& drawn) const {
  const Slot& slot = slots.slot(plan.slot(run.plan_row));
  out.set_slot(plan.slot(run.plan_row));
  out.set_slot_gen(plan.slot_gen(run.plan_row));
  out.set_first(run.first);
  if (slot.poisoned) out.set_flags(internal::OUTPUT_NON_FINITE);
  drawn.push_back(out.flags());
  if (slot.poisoned) return;
  for (size_t i = run.begin; i < run.end; ++i) {
    if (!score_rows_[i].target.has_value()) continue;
    const SampleOutput& score = scores_[i];
    out.add_logprob(score.logprob);
    drawn.push_back(std::bit_cast<uint32_t>(score.logprob));
    for (int t = 0; t < score.n_top; ++t) {
      internal::TokenLogprob& top = *out.add_top();
      top.set_token(score.top[static_cast<size_t>(t)].token);
      top.set_logprob(score.top[static_cast<size_t>(t)].logprob);
    }
  }
}

void StepBatch::Write(const SampleOutput& sample, const SampleParams& params,
                      internal::StepOutput& out) const {
  out.set_token(sample.token);
  if (params.want_logprob || params.top_logprobs > 0) out.set_logprob(sample.logprob);
  for (int i = 0; i < sample.n_top; ++i) {
    internal::TokenLogprob& top = *out.add_top();
    top.set_token(sample.top[static_cast<size_t>(i)].token);
    top.set_logprob(sample.top[static_cast<size_t>(i)].logprob);
  }
}

}  // namespace bitshard
