#include "tests/support/teacher.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/checked_math.h"
#include "kernels/base/status_macros.h"

namespace bitshard {
namespace {

constexpr uint32_t kBlockTokens = 16;

// The one row of slot 0 that runs [start, start + n) of its history; appends the blocks it needs.
void AddRow(uint32_t start, uint32_t n, uint32_t flags, uint32_t output_index,
            uint32_t* blocks_held, internal::StepPlan* plan) {
  plan->add_slot(0);
  plan->add_slot_gen(1);
  plan->add_start(start);
  plan->add_n_tokens(n);
  plan->add_output_index(output_index);
  plan->add_flags(flags);
  const uint32_t need = static_cast<uint32_t>(CeilDiv(start + n, kBlockTokens));
  plan->add_n_new_blocks(need - std::min(need, *blocks_held));
  for (; *blocks_held < need; ++*blocks_held) plan->add_new_blocks(*blocks_held);
}

internal::StepPlan NewPlan(const ThreadGroup& group, uint64_t step) {
  internal::StepPlan plan;
  plan.set_term(group.term());
  plan.set_epoch(group.epoch());
  plan.set_step(step);
  return plan;
}

void AddSequence(absl::Span<const int32_t> tokens, internal::StepPlan* plan) {
  internal::NewSequence* sequence = plan->add_new_sequences();
  sequence->set_slot(0);
  sequence->set_slot_gen(1);
  for (int32_t t : tokens) sequence->add_tokens(static_cast<uint32_t>(t));
  sequence->set_n_prompt(static_cast<uint32_t>(tokens.size()));
  sequence->mutable_sampling()->set_top_p(1);
}

}  // namespace

std::function<void(int, uint64_t, uint32_t, uint32_t, absl::Span<const float>)>
LogitsRecorder::Tap() {
  return [this](int, uint64_t vocab_begin, uint32_t, uint32_t position,
                absl::Span<const float> logits) {
    std::lock_guard<std::mutex> lock(mu_);
    if (rows_.size() <= position) rows_.resize(position + 1);
    std::vector<float>& row = rows_[position];
    row.resize(vocab_size_);
    if (vocab_begin >= vocab_size_) return;  // a rank without vocabulary
    const size_t count = std::min<size_t>(logits.size(), vocab_size_ - vocab_begin);
    std::copy_n(logits.begin(), count, row.begin() + static_cast<ptrdiff_t>(vocab_begin));
  };
}

void LogitsRecorder::Clear() {
  std::lock_guard<std::mutex> lock(mu_);
  rows_.clear();
}

absl::Span<const float> LogitsRecorder::At(uint32_t position) const {
  return position < rows_.size() ? absl::Span<const float>(rows_[position])
                                 : absl::Span<const float>();
}

std::vector<double> LogitsRecorder::LogProbs(uint32_t position) const {
  const absl::Span<const float> row = At(position);
  double max = -INFINITY, sum = 0;
  for (float x : row) max = std::max(max, static_cast<double>(x));
  for (float x : row) sum += std::exp(x - max);
  const double log_sum = max + std::log(sum);
  std::vector<double> out(row.begin(), row.end());
  for (double& x : out) x -= log_sum;
  return out;
}

absl::Status TeacherForce(ThreadGroup& group, absl::Span<const int32_t> tokens, uint32_t chunk,
                          Outputs outputs) {
  RETURN_IF_ERROR(group.StartEpoch());
  const uint32_t total = static_cast<uint32_t>(tokens.size());
  uint32_t blocks_held = 0;
  uint64_t step = 0;
  for (uint32_t start = 0; start < total; start += chunk) {
    internal::StepPlan plan = NewPlan(group, ++step);
    if (start == 0) AddSequence(tokens, &plan);
    const uint32_t n = std::min(chunk, total - start);
    const bool last = start + n == total;
    const uint32_t flags = outputs == Outputs::kAll ? internal::ROW_SCORE
                           : last                   ? internal::ROW_SAMPLE
                                                    : 0;
    AddRow(start, n, flags, /*output_index=*/0, &blocks_held, &plan);
    RETURN_IF_ERROR(group.RunPlan(plan).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> GreedyContinue(ThreadGroup& group,
                                                    absl::Span<const int32_t> tokens,
                                                    uint32_t count) {
  RETURN_IF_ERROR(group.StartEpoch());
  std::vector<int32_t> out;
  uint32_t blocks_held = 0, start = 0, n = static_cast<uint32_t>(tokens.size());
  for (uint32_t i = 0; i < count; ++i) {
    internal::StepPlan plan = NewPlan(group, i + 1);
    if (i == 0) AddSequence(tokens, &plan);
    AddRow(start, n, internal::ROW_SAMPLE, i, &blocks_held, &plan);
    ASSIGN_OR_RETURN(const internal::StepResult result, group.RunPlan(plan));
    if (result.outputs_size() != 1) return absl::InternalError("a sampling row gave no output");
    out.push_back(static_cast<int32_t>(result.outputs(0).token()));
    start += n;
    n = 1;
  }
  return out;
}

}  // namespace bitshard
