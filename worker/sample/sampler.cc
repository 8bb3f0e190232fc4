#include "worker/sample/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

#include "kernels/base/check.h"
#include "kernels/base/math.h"
#include "kernels/base/status_macros.h"
#include "worker/sample/mass.h"
#include "worker/sample/token_order.h"

namespace bitshard {
namespace {

// How many merged candidates are kept of a row, most: more than a rank's list, because the lists
// interleave.
constexpr size_t kMerged = 256;
constexpr size_t kScratch = 8 * Sampler::kCandidates;
constexpr size_t kHeaderWords = 4;
// What is added up of a row over the ranks: see sums_.
constexpr size_t kSums = 3;
// Masses are at most 2^40 each: so many of them stay below 2^62.
constexpr uint32_t kMaxVocab = 1 << 22;
constexpr int kMaxWorld = 64;

NoiseKey NoiseOf(const SampleRow& row) {
  return {.seed = row.params.seed, .position = row.position, .choice = row.params.choice};
}

// The mass that top-p must reach: p of `mass`, at least 1.
int64_t TopPTarget(float top_p, int64_t mass) {
  const double share = std::ceil(static_cast<double>(top_p) * static_cast<double>(mass));
  return std::clamp<int64_t>(static_cast<int64_t>(share), 1, std::max<int64_t>(mass, 1));
}

template <typename T>
absl::Span<uint8_t> Bytes(absl::Span<T> values) {
  return absl::MakeSpan(reinterpret_cast<uint8_t*>(values.data()), values.size() * sizeof(T));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sampler>> Sampler::Bind(const Options& o) {
  if (o.vocab_size == 0 || o.vocab_size > kMaxVocab || o.vocab_begin % kUnit != 0 ||
      o.max_outputs < 1 || o.world < 1 || o.world > kMaxWorld || o.local_vocab > kMaxVocab ||
      o.vocab_begin > kMaxVocab) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sampler: vocabulary of ", o.vocab_size, ", rank holds ", o.local_vocab, " from ",
        o.vocab_begin, ", ", o.max_outputs, " outputs, ", o.world, " ranks: sizes must be 1 to ",
        kMaxVocab, ", shards start at multiples of ", kUnit));
  }
  const uint32_t end = o.vocab_begin + o.local_vocab;
  if (o.local_vocab > 0 && end < o.vocab_size && end % kUnit != 0) {
    return absl::InvalidArgumentError(absl::StrCat("sampler: a shard ends at token ", end, " of ",
                                                   o.vocab_size, ", inside a unit of ", kUnit,
                                                   "; sums would depend on the cut"));
  }
  return std::unique_ptr<Sampler>(new Sampler(o));
}

Sampler::Sampler(const Options& o)
    : options_(o),
      local_count_(std::min(o.local_vocab, o.vocab_size - std::min(o.vocab_size, o.vocab_begin))),
      units_((local_count_ + kUnit - 1) / kUnit),
      search_(o.vocab_begin, o.world),
      states_(o.max_outputs),
      unit_max_(o.max_outputs * units_),
      scratch_(kScratch * (o.pool == nullptr ? 1 : o.pool->threads())),
      mine_(o.max_outputs * (kHeaderWords + kCandidates)),
      all_(mine_.size() * o.world),
      merged_(o.max_outputs * kMerged),
      sums_(kSums * o.max_outputs),
      my_draws_(o.max_outputs),
      all_draws_(my_draws_.size() * o.world) {
  tasks_.reserve(o.max_outputs);
}

LogitsRow Sampler::Local(size_t row) const {
  return {.logits = logits_ + row * options_.local_vocab,
          .unit_max = unit_max_.data() + row * units_,
          .begin = options_.vocab_begin,
          .count = local_count_,
          .isa = options_.isa};
}

void Sampler::ForRows(ThreadPool::Fn fn) {
  if (options_.pool != nullptr && rows_ > 1) {
    options_.pool->ParallelFor(static_cast<int64_t>(rows_), fn);
  } else {
    for (size_t i = 0; i < rows_; ++i) fn(static_cast<int64_t>(i), 0);
  }
}

Sampler::Header Sampler::GatheredHeader(int rank, size_t row) const {
  std::array<uint64_t, kHeaderWords> words;
  std::copy_n(all_.data() + rank * mine_keys_ + row * kHeaderWords, kHeaderWords, words.begin());
  return std::bit_cast<Header>(words);
}

absl::Status Sampler::Sample(absl::Span<const float> logits, absl::Span<const SampleRow> rows,
                             Collective& collective, absl::Span<SampleOutput> out) {
  CHECK_EQ(collective.world(), options_.world);
  CHECK_LE(rows.size(), states_.size());
  CHECK_EQ(out.size(), rows.size());
  CHECK_EQ(logits.size(), rows.size() * options_.local_vocab);
  if (rows.empty()) return absl::OkStatus();
  logits_ = logits.data();
  rows_ = rows.size();
  absl::Status status = Run(rows, collective, out);
  if (absl::IsInternal(status)) collective.Abort();
  return status;
}

absl::Status Sampler::Run(absl::Span<const SampleRow> rows, Collective& collective,
                          absl::Span<SampleOutput> out) {
  Plan(rows);
  ScanLocal(rows);
  RETURN_IF_ERROR(
      collective.AllGather(Bytes(absl::MakeSpan(mine_).first(mine_keys_)),
                           Bytes(absl::MakeSpan(all_).first(mine_keys_ * options_.world))));
  for (size_t i = 0; i < rows_; ++i) RETURN_IF_ERROR(Merge(i, rows[i], out[i]));
  RETURN_IF_ERROR(ReduceSums(rows, collective));
  RETURN_IF_ERROR(Search(rows, collective));
  RETURN_IF_ERROR(DrawLater(rows, collective));

  for (size_t i = 0; i < rows_; ++i) {
    const RowState& s = states_[i];
    SampleOutput& o = out[i];
    if (o.non_finite) continue;
    if (s.winner.token >= options_.vocab_size) {
      return absl::InternalError(absl::StrCat("sampler: the ranks' numbers for output ", i, " of ",
                                              rows_, " contradict each other: no token"));
    }
    o.token = s.winner.token;
    if (!s.wants_raw_sum) continue;
    o.logprob = LogProbability(s.winner.logit, s.max, s.raw_sum);
    o.n_top = static_cast<int>(std::min<size_t>(rows[i].params.top_logprobs, s.merged.size()));
    for (int j = 0; j < o.n_top; ++j) {
      o.top[j] = {KeyToken(s.merged[j]), LogProbability(KeyLogit(s.merged[j]), s.max, s.raw_sum)};
    }
  }
  return absl::OkStatus();
}

// What each row needs, from numbers that all ranks have.
void Sampler::Plan(absl::Span<const SampleRow> rows) {
  size_t at = rows_ * kHeaderWords;
  for (size_t i = 0; i < rows_; ++i) {
    const SampleParams& p = rows[i].params;
    CHECK_LE(p.top_logprobs, uint32_t{kMaxTopLogprobs});
    CHECK_LT(rows[i].target.value_or(0), options_.vocab_size);
    RowState& s = states_[i];
    s = {};
    s.temperature = std::min(p.temperature, std::numeric_limits<float>::max());
    s.top_k = p.top_k >= options_.vocab_size ? 0 : p.top_k;
    s.top_p = p.top_p;
    s.floor = p.min_p > 0 ? static_cast<float>(Log(std::min(p.min_p, 1.0f)))
                          : -std::numeric_limits<float>::infinity();
    s.wants_raw_sum = p.want_logprob || p.top_logprobs > 0 || rows[i].target.has_value();
    const bool filters = s.top_k > 0 || p.top_p < 1 || p.min_p > 0;
    const bool greedy = !(p.temperature > 0) || s.top_k == 1 || rows[i].target.has_value();
    s.filter = greedy ? Filter::kGreedy : filters ? Filter::kPrefix : Filter::kNone;

    size_t want = p.top_logprobs;
    if (s.filter == Filter::kPrefix) {
      const bool few = s.top_k > 0 && s.top_k <= kCandidates;
      want = std::max<size_t>(want, few ? s.top_k : kCandidates);
    }
    s.n_candidates = std::min<size_t>(want, options_.vocab_size);
    s.candidates_at = at;
    at += s.n_candidates;
  }
  mine_keys_ = at;
}

void Sampler::ScanLocal(absl::Span<const SampleRow> rows) {
  ForRows([&](int64_t i, int thread) {
    const RowState& s = states_[i];
    const RowSummary summary = SummarizeRow(Local(i).logits, options_.vocab_begin, local_count_,
                                            unit_max_.data() + i * units_);
    Header header{.max = summary.max,
                  .token = summary.token,
                  .bad = summary.bad ? 1u : 0u,
                  .n_candidates = 0,
                  .draw = {}};
    const auto scratch = absl::MakeSpan(scratch_).subspan(thread * kScratch, kScratch);
    const auto candidates = absl::MakeSpan(mine_).subspan(s.candidates_at, s.n_candidates);
    if (!summary.bad) {
      header.n_candidates = static_cast<uint32_t>(TopTokens(Local(i), scratch, candidates));
      if (s.filter == Filter::kNone) {
        header.draw =
            DrawFromRow(Local(i), {.scale = {.temperature = s.temperature}}, NoiseOf(rows[i]));
      }
    }
    std::fill(candidates.begin() + header.n_candidates, candidates.end(), 0);
    const auto words = std::bit_cast<std::array<uint64_t, kHeaderWords>>(header);
    std::copy(words.begin(), words.end(), mine_.begin() + i * kHeaderWords);
  });
}

absl::Status Sampler::Merge(size_t row, const SampleRow& params, SampleOutput& out) {
  RowState& s = states_[row];
  out = {};
  s.max = -std::numeric_limits<float>::infinity();
  uint32_t best = kNoToken;
  for (int r = 0; r < options_.world; ++r) {
    const Header header = GatheredHeader(r, row);
    if (header.bad != 0) out.non_finite = true;
    if (header.max > s.max || (header.max == s.max && header.token < best)) {
      s.max = header.max;
      best = header.token;
    }
    s.winner.Offer(header.draw.score, header.draw.logit, header.draw.token);
  }
  if (out.non_finite) {
    s.done = true;
    s.wants_raw_sum = false;
    return absl::OkStatus();
  }
  if (best == kNoToken) return absl::InternalError("sampler: no rank holds any of the vocabulary");
  RETURN_IF_ERROR(MergeCandidates(row));
  s.done = s.filter != Filter::kPrefix;
  if (s.filter == Filter::kGreedy) s.winner = {.score = 0, .logit = s.max, .token = best};
  if (s.filter == Filter::kPrefix) DecidePrefix(row, NoiseOf(params));
  return absl::OkStatus();
}

// Merges the ranks' lists as far as it is certain: until a full list ends, behind which its rank
// may have more.
absl::Status Sampler::MergeCandidates(size_t row) {
  RowState& s = states_[row];
  uint64_t* const merged = merged_.data() + row * kMerged;
  size_t taken[kMaxWorld] = {}, count[kMaxWorld] = {};
  for (int r = 0; r < options_.world; ++r) {
    count[r] = GatheredHeader(r, row).n_candidates;
    if (count[r] > s.n_candidates) {
      return absl::InternalError(absl::StrCat("sampler: rank ", r, " says it sent ", count[r],
                                              " candidates where ", s.n_candidates, " fit"));
    }
  }
  size_t size = 0;
  bool open = s.n_candidates == 0;
  while (!open && size < kMerged) {
    uint64_t best = 0;
    int from = -1;
    for (int r = 0; r < options_.world; ++r) {
      if (taken[r] == count[r]) continue;
      const uint64_t key = all_[r * mine_keys_ + s.candidates_at + taken[r]];
      if (from < 0 || key > best) {
        best = key;
        from = r;
      }
    }
    if (from < 0) break;
    merged[size++] = best;
    open = ++taken[from] == s.n_candidates;
  }
  s.merged = {merged, size};
  s.all_merged = !open && size < kMerged;
  return absl::OkStatus();
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

absl::Status Sampler::ReduceSums(absl::Span<const SampleRow> rows, Collective& collective) {
  bool any = false;
  for (size_t i = 0; i < rows_; ++i) any = any || states_[i].wants_raw_sum || states_[i].wants_mass;
  if (!any) return absl::OkStatus();
  ForRows([&](int64_t i, int) {
    const RowState& s = states_[i];
    int64_t* const sums = sums_.data() + kSums * i;
    sums[0] = s.wants_raw_sum ? RawSum(Local(i), s.max) : 0;
    sums[1] = s.wants_mass ? MassSum(Local(i), s.kept.scale) : 0;
    // Below vocab_begin it wraps around, and is no local token either.
    const uint32_t local = rows[i].target.value_or(kNoToken) - options_.vocab_begin;
    const bool mine = rows[i].target.has_value() && local < local_count_;
    sums[2] = mine ? int64_t{std::bit_cast<uint32_t>(Local(i).logits[local])} : 0;
  });
  RETURN_IF_ERROR(collective.AllReduceSum(absl::MakeSpan(sums_).first(kSums * rows_)));
  for (size_t i = 0; i < rows_; ++i) {
    RowState& s = states_[i];
    s.raw_sum = sums_[kSums * i];
    if (rows[i].target.has_value()) {
      const float logit = std::bit_cast<float>(static_cast<uint32_t>(sums_[kSums * i + 2]));
      s.winner = {.score = 0, .logit = logit, .token = *rows[i].target};
    }
    if (!s.wants_mass) continue;
    s.mass = sums_[kSums * i + 1];
    s.target = TopPTarget(s.top_p, s.mass);
    TryTopP(s, s.above_floor, NoiseOf(rows[i]));
  }
  return absl::OkStatus();
}

// First round: by count for rows with top-k, by mass for those with top-p alone. Second round: by
// mass for rows with both.
absl::Status Sampler::Search(absl::Span<const SampleRow> rows, Collective& collective) {
  for (const bool second : {false, true}) {
    tasks_.clear();
    for (size_t i = 0; i < rows_; ++i) {
      RowState& s = states_[i];
      if (s.done || s.draw_later) continue;
      const bool by_count = s.top_k > 0 && !second;
      tasks_.push_back({.row = static_cast<int>(i),
                        .logits = Local(i),
                        .scale = s.kept.scale,
                        .by_count = by_count,
                        .target = by_count ? int64_t{s.top_k} : s.target,
                        .want_ties = !by_count || !(s.top_p < 1)});
    }
    if (tasks_.empty()) break;
    RETURN_IF_ERROR(search_.Run(absl::MakeSpan(tasks_), collective));
    for (const SearchTask& task : tasks_) {
      RowState& s = states_[task.row];
      if (!task.want_ties) {  // top-p follows, over what top-k keeps
        s.mass = task.kept_mass;
        s.target = TopPTarget(s.top_p, s.mass);
        TryTopP(s, s.above_floor, NoiseOf(rows[task.row]));
        continue;
      }
      s.kept.boundary = task.boundary;
      s.kept.ties = task.local_ties;
      s.draw_later = true;
    }
  }
  return absl::OkStatus();
}

absl::Status Sampler::DrawLater(absl::Span<const SampleRow> rows, Collective& collective) {
  size_t n = 0;
  for (size_t i = 0; i < rows_; ++i) {
    if (states_[i].draw_later)
      my_draws_[n++] = DrawFromRow(Local(i), states_[i].kept, NoiseOf(rows[i]));
  }
  if (n == 0) return absl::OkStatus();
  RETURN_IF_ERROR(
      collective.AllGather(Bytes(absl::MakeSpan(my_draws_).first(n)),
                           Bytes(absl::MakeSpan(all_draws_).first(n * options_.world))));
  size_t at = 0;
  for (size_t i = 0; i < rows_; ++i) {
    RowState& s = states_[i];
    if (!s.draw_later) continue;
    for (int r = 0; r < options_.world; ++r) {
      const Draw& draw = all_draws_[r * n + at];
      s.winner.Offer(draw.score, draw.logit, draw.token);
    }
    ++at;
    s.done = true;
  }
  return absl::OkStatus();
}

}  // namespace bitshard
