// What the first all-gather tells of a row: a decision where the first candidates suffice.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "worker/sample/mass.h"
#include "worker/sample/sampler.h"
#include "worker/sample/token_order.h"

namespace bitshard {

absl::Status Sampler::Merge(size_t row, const SampleRow& params, SampleOutput& out) {
  RowState& s = states_[row];
  out = {};
  s.max = s.raw_max = -std::numeric_limits<float>::infinity();
  uint32_t best = kNoToken;
  for (int r = 0; r < options_.world; ++r) {
    const Header header = GatheredHeader(r, row);
    if (header.bad != 0) out.non_finite = true;
    if (header.max > s.max || (header.max == s.max && header.token < best)) {
      s.max = header.max;
      best = header.token;
    }
    s.raw_max = std::max(s.raw_max, header.raw_max);
    s.winner.Offer(header.draw.score, header.draw.logit, header.draw.token);
  }
  if (best == kNoToken && !s.edited.has_value() && !out.non_finite)
    return absl::InternalError("sampler: no rank holds any of the vocabulary");
  out.none_allowed = best == kNoToken && !out.non_finite;
  if (out.non_finite || out.none_allowed) {
    s.done = true;
    s.wants_raw_sum = false;
    return absl::OkStatus();
  }
  bool open = false;
  const auto merged = absl::MakeSpan(merged_).subspan(row * kMerged, kMerged);
  ASSIGN_OR_RETURN(const size_t size, MergeLists(row, /*raw=*/false, merged, &open));
  s.merged = merged.first(size);
  s.all_merged = !open && size < kMerged;
  s.raw_merged = s.merged;
  if (s.edited.has_value()) {
    const auto raw =
        absl::MakeSpan(raw_merged_).subspan(*s.edited * kMaxTopLogprobs, s.raw_candidates.most);
    ASSIGN_OR_RETURN(const size_t raw_size, MergeLists(row, /*raw=*/true, raw, &open));
    s.raw_merged = raw.first(raw_size);
  }
  s.done = s.filter != Filter::kPrefix;
  if (s.filter == Filter::kGreedy) s.winner = {.score = 0, .logit = s.max, .token = best};
  if (s.filter == Filter::kPrefix) DecidePrefix(row, NoiseOf(params));
  return absl::OkStatus();
}

// It is certain until a full list ends, behind which its rank may have more.
absl::StatusOr<size_t> Sampler::MergeLists(size_t row, bool raw, absl::Span<uint64_t> merged,
                                           bool* open) {
  const Lists& lists = raw ? states_[row].raw_candidates : states_[row].candidates;
  size_t taken[kMaxWorld] = {}, count[kMaxWorld] = {};
  for (int r = 0; r < options_.world; ++r) {
    const Header header = GatheredHeader(r, row);
    count[r] = raw ? header.n_raw : header.n_candidates;
    if (count[r] > lists.most) {
      return absl::InternalError(absl::StrCat("sampler: rank ", r, " says it sent ", count[r],
                                              " candidates where ", lists.most, " fit"));
    }
  }
  size_t size = 0;
  *open = lists.most == 0;
  while (!*open && size < merged.size()) {
    uint64_t best = 0;
    int from = -1;
    for (int r = 0; r < options_.world; ++r) {
      if (taken[r] == count[r]) continue;
      const uint64_t key = all_[r * mine_keys_ + lists.at + taken[r]];
      if (from < 0 || key > best) {
        best = key;
        from = r;
      }
    }
    if (from < 0) break;
    merged[size++] = best;
    *open = ++taken[from] == lists.most;
  }
  return size;
}

// Either the kept tokens lie in the certain candidates: draw; or say what must be found out.
void Sampler::DecidePrefix(size_t row, const NoiseKey& noise) {
  RowState& s = states_[row];
  s.kept.scale = {.max = s.max, .temperature = s.temperature, .floor = s.floor};
  size_t& above = s.above_floor;
  while (above < s.merged.size() &&
         Exponent(KeyLogit(s.merged[above]), s.max, s.temperature) >= s.floor)
    ++above;
  const bool floor_seen = above < s.merged.size() || s.all_merged;
  const bool count_seen = s.top_k > 0 && s.top_k <= above;
  if (!floor_seen && !count_seen) {
    s.wants_mass = s.top_p < 1 && s.top_k == 0;
    s.draw_later =
        !(s.top_p < 1) && s.top_k == 0;  // min-p alone is a rule that each rank can apply
    return;
  }
  const size_t length = count_seen ? s.top_k : above;
  if (!(s.top_p < 1)) return DrawPrefix(s, length, noise);
  s.mass = 0;
  for (uint64_t key : s.merged.first(length))
    s.mass += MassOfExponent(Exponent(KeyLogit(key), s.max, s.temperature));
  s.target = TopPTarget(s.top_p, s.mass);
  CHECK(TryTopP(s, length, noise)) << "a prefix holds less than its own mass";
}

void Sampler::DrawPrefix(RowState& s, size_t length, const NoiseKey& noise) {
  s.winner = DrawFromKeys(s.merged.first(length), s.temperature, noise);
  s.done = true;
}

bool Sampler::TryTopP(RowState& s, size_t most, const NoiseKey& noise) {
  int64_t before = 0;
  for (size_t i = 0; i < most; ++i) {
    before += MassOfExponent(Exponent(KeyLogit(s.merged[i]), s.max, s.temperature));
    if (before < s.target) continue;
    DrawPrefix(s, i + 1, noise);
    return true;
  }
  return false;
}

// The mass that top-p must reach: p of `mass`, at least 1.
int64_t Sampler::TopPTarget(float top_p, int64_t mass) {
  const double share = std::ceil(static_cast<double>(top_p) * static_cast<double>(mass));
  return std::clamp<int64_t>(static_cast<int64_t>(share), 1, std::max<int64_t>(mass, 1));
}

}  // namespace bitshard
