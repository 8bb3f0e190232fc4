// What each row needs, from its parameters alone: the same on all ranks, and before there are
// logits.
#include <algorithm>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/math.h"
#include "worker/sample/sampler.h"

namespace bitshard {

Sampler::RowState Sampler::StateOf(const SampleRow& row, uint32_t vocab_size) {
  const SampleParams& p = row.params;
  CHECK_LE(p.top_logprobs, uint32_t{kMaxTopLogprobs});
  CHECK_LT(row.target.value_or(0), vocab_size);
  CHECK(row.edits == nullptr || !row.target.has_value());
  RowState s = {};
  s.temperature = std::min(p.temperature, std::numeric_limits<float>::max());
  s.top_k = p.top_k >= vocab_size ? 0 : p.top_k;
  s.top_p = p.top_p;
  s.floor = p.min_p > 0 ? static_cast<float>(Log(std::min(p.min_p, 1.0f)))
                        : -std::numeric_limits<float>::infinity();
  s.wants_raw_sum = p.want_logprob || p.top_logprobs > 0 || row.target.has_value();
  const bool filters = s.top_k > 0 || p.top_p < 1 || p.min_p > 0;
  const bool greedy = !(p.temperature > 0) || s.top_k == 1 || row.target.has_value();
  s.filter = greedy ? Filter::kGreedy : filters ? Filter::kPrefix : Filter::kNone;

  size_t want = 0;
  if (s.filter == Filter::kPrefix) {
    const bool few = s.top_k > 0 && s.top_k <= kCandidates;
    want = few ? s.top_k : kCandidates;
  }
  if (row.edits != nullptr) {
    s.raw_candidates.most = std::min<size_t>(p.top_logprobs, vocab_size);
  } else {
    want = std::max<size_t>(want, p.top_logprobs);
  }
  s.candidates.most = std::min<size_t>(want, vocab_size);
  return s;
}

LogitScanRequest Sampler::ScanRequestOf(const SampleRow& row, uint32_t vocab_size) {
  const RowState s = StateOf(row, vocab_size);
  LogitScanRequest request;
  request.candidates = static_cast<uint32_t>(s.candidates.most);
  if (s.filter != Filter::kNone) return request;
  request.draws = 1;
  request.temperature = s.temperature;
  request.choice = row.params.choice;
  request.seed = row.params.seed;
  request.position = row.position;
  return request;
}

void Sampler::Plan(absl::Span<const SampleRow> rows) {
  size_t at = rows_ * kHeaderWords, edited = 0;
  const auto place = [&](Lists& lists) {
    lists.at = at;
    at += lists.most;
  };
  for (size_t i = 0; i < rows_; ++i) {
    RowState& s = states_[i];
    s = StateOf(rows[i], options_.vocab_size);
    if (rows[i].edits != nullptr) {
      s.edited = edited++;
      place(s.raw_candidates);
    }
    place(s.candidates);
    if (local_count_ > 0 && !NeedsWholeRow(rows[i])) s.scanned = source_->Scanned(first_ + i);
    s.is_here = !s.scanned.has_value();
  }
  mine_keys_ = at;
}

}  // namespace bitshard
